"""Schedules: which task runs by which option on which devices from when, with a proven bound of the objective."""
