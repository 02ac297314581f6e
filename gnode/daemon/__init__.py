"""The shell of the node: spool, channel to the head, launcher client."""
