"""The head: the only place that decides."""
