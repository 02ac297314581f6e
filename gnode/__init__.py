"""The node daemon: runs attempts as their owners and reports."""
