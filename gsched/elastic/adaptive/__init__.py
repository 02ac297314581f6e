"""Trainings whose batch size and learning rate follow their GPUs."""
