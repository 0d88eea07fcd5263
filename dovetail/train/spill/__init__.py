"""The technique `spill`: one task on a device that its model does not fit, its segments streaming through it."""

import torch

from dovetail.train.base import NO_KNOBS, Knobs, Members, Technique, TrainingSession
from dovetail.train.spill.refusals import refusal
from dovetail.train.spill.spill_knobs import SpillKnobs
from dovetail.train.spill.spill_session import SpillSession


class Spill(Technique):
    """One task, streaming between device, host and disk."""

    name = "spill"
    exactness = (
        "bit-equal to resident on the same processor with the same optimizer implementation; where the host's Adam "
        "updates what a CUDA device computes, equal up to rounding: parameters within 1e-4 of their norm after 50 steps"
    )

    def refuse(self, members: Members) -> str | None:
        """Gangs, steps of the program's own, and optimizers that look at several parameters at once."""
        if len(members) != 1:
            return f"spill trains one task at a time, got {len(members)}"
        return refusal(members[0].training)

    def open(self, members: Members, *, device: torch.device, threads: int, knobs: Knobs = NO_KNOBS) -> TrainingSession:
        """A session within the budgets of the knobs; refused with numbers where no layout keeps within them."""
        self.check(members)
        return SpillSession(members[0], device=device, threads=threads, knobs=SpillKnobs.read(knobs))


SPILL = Spill()

__all__ = ["SPILL", "SpillKnobs", "SpillSession"]
