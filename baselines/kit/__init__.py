"""What several baselines have in common."""
