"""The life of an attempt: assigned, reported by nodes, ended, settled, queued again or held."""
