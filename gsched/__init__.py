"""What users import and run, and what both daemons share."""
