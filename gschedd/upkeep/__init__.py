"""What administrators do with the head's files: backup, restore, and the step of the schema."""
