"""Policies to compare with: simple ones, and those of the literature. They are not installed."""
