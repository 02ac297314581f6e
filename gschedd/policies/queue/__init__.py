"""Policies for the jobs of a queue."""
