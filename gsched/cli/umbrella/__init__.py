"""The sub-commands of ``gsched``: bring up, take down, look after an installation."""
