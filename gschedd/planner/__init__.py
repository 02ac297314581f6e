"""Policies that take their time run in a process of their own, beside the head."""
