"""Fair shares: the share tree and the usage of projects and users. Pure."""
