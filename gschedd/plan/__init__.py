"""Pure: snapshot, plan, fit (the one feasibility function), validate."""
