"""The store: SQLite, migrations and the high-water mark."""
