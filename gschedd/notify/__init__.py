"""Mail and hooks when jobs begin and end: a process beside the head that reads committed events."""
