"""Message schemas of the HTTP API and of the node channel."""
