"""Forecasts: when waiting jobs will start, and whether trainings will meet their deadlines."""
