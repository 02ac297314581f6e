"""Training jobs whose batch size and learning rate follow their GPUs."""
