"""The state as users see it: rows and stories of jobs, reasons, migrations."""
