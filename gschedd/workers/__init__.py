"""Processes of the head's own that run beside it and are started again when they end."""
