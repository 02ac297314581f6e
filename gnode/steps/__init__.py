"""The step agent: starts tasks on its node for programs of its job on other nodes."""
