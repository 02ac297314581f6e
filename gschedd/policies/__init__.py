"""Pure: the policies, by what they plan for; none imports another."""
