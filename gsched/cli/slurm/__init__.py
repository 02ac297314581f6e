"""The commands of Slurm under their own names, as far as submitit and like tools use them."""
