"""Schedules: which option each task runs with, on which devices, and when. `plan` is the entry."""
