"""Recovery after a loss of the database: what is taken back from nodes, and which history it is."""
