"""The state of the head: records, facts, and what follows from both."""
