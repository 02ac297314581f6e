"""The life of an attempt: assigned, reported by nodes, ended, settled, requeued or held."""
