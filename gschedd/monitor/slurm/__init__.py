"""The read half of Slurm's REST API, for exporters, dashboards and generated clients."""
