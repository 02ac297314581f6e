"""Pure: the agent, and the binding of an allocation to environment and limits."""
