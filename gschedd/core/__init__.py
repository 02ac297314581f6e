"""Pure: the state of the head and all that changes it; inputs in, facts and effects out."""
