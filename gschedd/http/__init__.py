"""The HTTP API for commands and the node channel."""
