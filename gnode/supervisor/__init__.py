"""One process per attempt; outlives gnode; standard library only."""
