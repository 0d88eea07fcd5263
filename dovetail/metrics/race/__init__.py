"""Races: who reaches a target first, by which clock, how surely, and why. Pure: from events and points alone."""
