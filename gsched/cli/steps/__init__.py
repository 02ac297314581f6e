"""Tasks on the nodes of the job in which a command runs: pbsdsh, srun and gsched-launch-agent."""
