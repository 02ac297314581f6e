"""The task that owns the head: batches, commits, then replies and effects."""
