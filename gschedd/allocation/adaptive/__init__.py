"""Adaptive training jobs: configurations of GPUs by type, their best assignment, its placement."""
