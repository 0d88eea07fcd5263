"""The technique `beside`: tasks of any models on one device at once, each on a stream of its own.

Each trains as with `graph`: what Python hands over of a step is one graph and the optimizer's few kernels, so one
process keeps several streams filled, and the device works at all of them as far as it has room. They share nothing but
the device, and each ends and is saved as it would be alone.
"""

from collections.abc import Sequence

import torch

from dovetail.train.base import (
    NO_KNOBS,
    GangSession,
    Knobs,
    Members,
    SessionMember,
    StepReport,
    Technique,
    TrainingSession,
)
from dovetail.train.graph import GRAPH, GraphSession


class Beside(Technique):
    """Two tasks or more, each of which `graph` could train alone."""

    name = "beside"
    exactness = GRAPH.exactness

    def refuse(self, members: Members) -> str | None:
        """Fewer than two, and what `graph` refuses."""
        if len(members) < 2:
            return f"beside trains two tasks or more, got {len(members)}"
        found = ((number, GRAPH.refuse([member])) for number, member in enumerate(members, start=1))
        return next((f"task {number} of {len(members)}: {reason}" for number, reason in found if reason), None)

    def open(self, members: Members, *, device: torch.device, threads: int, knobs: Knobs = NO_KNOBS) -> TrainingSession:
        """A session of all members at step 0."""
        self.check(members)
        return BesideSession(members, device=device, threads=threads)


BESIDE = Beside()


class BesideSession(GangSession[GraphSession]):
    """Trainings in step with each other, each on its own stream."""

    def __init__(self, members: Sequence[SessionMember], *, device: torch.device, threads: int) -> None:
        self._members = [GraphSession(member, device=device, threads=threads) for member in members]

    @property
    def warmup_steps(self) -> int:
        """The steps that a member takes to reach its usual speed; they all need as many."""
        return self._members[0].warmup_steps

    @property
    def streams(self) -> list[torch.cuda.Stream]:
        """Where the device's work is put: one of each member."""
        return [stream for member in self._members for stream in member.streams]

    def advance(self, live: Sequence[int] = (0,)) -> list[StepReport]:
        """One step of each live member; the device works at them at once."""
        reports = []
        for place, number in enumerate(live):
            try:
                reports += self._members[number].advance()
            except Exception as error:
                error.member = place  # type: ignore[attr-defined]  # whose fault it was, among the live
                raise
        return reports
