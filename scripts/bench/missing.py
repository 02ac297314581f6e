"""What a benchmark says of a system that it cannot measure here."""


class NotHereError(Exception):
    """The system is not installed, or does not start; the message says which and why."""
