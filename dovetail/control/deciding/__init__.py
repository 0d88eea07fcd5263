"""Ways of deciding what runs next, one file each: by one schedule for all that is left, or by rounds under a policy."""

from dovetail.control.deciding.base import Decider, Deciding

__all__ = ["Decider", "Deciding"]
