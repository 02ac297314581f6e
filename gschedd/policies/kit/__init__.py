"""What policies share: the pass over the queue with its reservation, and ways to rank nodes."""
