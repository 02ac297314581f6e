"""Policies for trainings: they choose the number and the place of GPUs."""
