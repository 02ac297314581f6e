"""Pure: commands, facts, effects, transitions, decide, apply, react, cycle, explain."""
