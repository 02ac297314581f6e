"""Metrics for Prometheus: counters from events and samples, and the state at a scrape."""
