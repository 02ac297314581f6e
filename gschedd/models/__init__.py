"""Pure: what a job will cost, learned from the jobs before it."""
