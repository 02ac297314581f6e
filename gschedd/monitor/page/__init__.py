"""The page for browsers: HTML that works without scripts, made by the monitor."""
