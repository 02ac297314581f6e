"""Requests of users: new jobs, changes and actions, checked, with refusals in words."""
