"""The technique `together`: tasks of any models that read the same batches, which are read once for all of them.

Reading is what they share, and nothing else: each trains as `resident` does, one after another on one device, with its
own random numbers, state and end. It pays where making a batch (decoding, augmenting, tokenising) takes a good part of
a step. Which tasks read the same a program says (`Training.shares`), since two first batches that are equal prove
nothing about the millionth; what it says is tested by the first batch.
"""

import random
from collections.abc import Sequence
from typing import Any

import numpy
import torch

from dovetail.feeds import Tap, digest, draw
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
from dovetail.train.fuse.stacked_batches import keep_position, read_first
from dovetail.train.resident import RESIDENT, ResidentSession
from dovetail.vocabulary import TechniqueRefused


class Together(Technique):
    """Two or more tasks with one reading of their batches."""

    name = "together"
    exactness = RESIDENT.exactness

    def refuse(self, members: Members) -> str | None:
        """Fewer than two, and those that do not say that they read the same."""
        if len(members) < 2:
            return f"together trains two tasks or more, got {len(members)}"
        names = sorted({member.training.shares for member in members})
        if len(names) > 1 or not names[0]:
            return f"tasks must name the batches that they share, all by the same Training.shares; found {names}"
        counts = sorted({member.training.accumulate for member in members})
        if len(counts) > 1:
            return f"tasks must take as many batches a step as each other; found accumulate of {counts}"
        return None

    def open(self, members: Members, *, device: torch.device, threads: int, knobs: Knobs = NO_KNOBS) -> TrainingSession:
        """A session of all members at step 0. Raises `TechniqueRefused` where their first batches differ."""
        self.check(members)
        return TogetherSession(members, device=device, threads=threads)


TOGETHER = Together()


class _TogetherMember(ResidentSession):
    """A training whose batches may be read by another."""

    def __init__(self, member: SessionMember, *, device: torch.device, threads: int) -> None:
        super().__init__(member, device=device, threads=threads)
        self.tap = Tap(member.training.batches, before_draw=self._random.before_batch)
        self._cursor = self.tap  # type: ignore[assignment]  # it is one, but for whose batches it may take

    def first_digest(self) -> str:
        """A digest of its first batch, as it would be drawn; nothing is taken by this."""
        with keep_position(self._training.batches):
            self._random.before_batch(0, -1)
            self._random.before_batch(0, 0)
            before = _others_generators()
            found = digest(read_first(self._training.batches))
            if _others_generators() != before:
                raise TechniqueRefused(
                    "batches that are shared must not draw from Python's or NumPy's generators, which every task has "
                    "for itself; draw from torch's, or from a generator of their own"
                )
        return found


class TogetherSession(GangSession[_TogetherMember]):
    """Trainings beside each other, in step, one reading for all that stand at the same place; one that is loaded shares
    again as soon as it stands where another does."""

    def __init__(self, members: Sequence[SessionMember], *, device: torch.device, threads: int) -> None:
        self._members = [_TogetherMember(member, device=device, threads=threads) for member in members]
        self._accumulate = members[0].training.accumulate
        try:
            _refuse_unlike([session.first_digest() for session in self._members], members[0].training.shares)
        except BaseException:
            self.close()
            raise

    def advance(self, live: Sequence[int] = (0,)) -> list[StepReport]:
        """One step of each live member, one after another."""
        taking = [self._members[number].tap for number in live]
        draw(taking, self._accumulate, absent=[s.tap for n, s in enumerate(self._members) if n not in live])
        reports = []
        for place, number in enumerate(live):
            try:
                reports += self._members[number].advance()
            except Exception as error:
                error.member = place  # type: ignore[attr-defined]  # whose fault it was, among the live
                raise
        return reports


def _refuse_unlike(digests: Sequence[str], shares: str) -> None:
    for number, found in enumerate(digests, start=1):
        if found != digests[0]:
            raise TechniqueRefused(
                f"tasks whose trainings share {shares!r} must read the same batches; the first batch of task {number} "
                f"of {len(digests)} is not that of task 1. Seed their order by something that the tasks have in "
                f"common, or name them apart"
            )


def _others_generators() -> tuple[Any, ...]:
    name, words, *rest = numpy.random.get_state(legacy=True)
    return random.getstate(), name, words.tobytes(), *rest  # type: ignore[union-attr]
