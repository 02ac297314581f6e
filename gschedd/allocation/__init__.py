"""What policies for training jobs share: configurations, time lines, placement, forecasts."""
