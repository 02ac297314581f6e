"""Forecasts: when waiting jobs will start, and whether training jobs will meet their deadlines."""
