"""The only writers of the state, one function for each fact."""
