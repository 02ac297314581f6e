"""The configuration file (TOML) and the few environment variables, read here and nowhere else."""
