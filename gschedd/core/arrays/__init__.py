"""Arrays: one job for any number of elements, which become jobs shortly before they can start."""
