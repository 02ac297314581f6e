"""The sub-commands of ``gsched``, for one installation: bring up, take down, look after it."""
