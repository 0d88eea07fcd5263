"""What the loop knows and what is on record of it: tasks, placements, profiles, faults; decides nothing of its own."""

from dovetail.control.state.state import Running, State

__all__ = ["Running", "State"]
