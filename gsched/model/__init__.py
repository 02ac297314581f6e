"""Frozen values: ids, resources, job, node, allocation, states."""
