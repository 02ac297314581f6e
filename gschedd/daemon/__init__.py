"""The shell that ties core, store and HTTP together."""
