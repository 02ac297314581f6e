"""Scheduling cycles: which jobs to look at, the snapshot, the plan and what is accepted of it."""
