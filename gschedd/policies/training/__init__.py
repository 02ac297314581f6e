"""Policies for training jobs: they choose the number and the place of GPUs."""
