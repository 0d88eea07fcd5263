"""The technique `interleave`: several spilled tasks on one device, the segments of one computing while another's move
or are updated by the host.

Each member's step runs in a thread of its own, and one of them at a time computes. Among the members whose next
segment is ready, one that is in the middle of its step goes on before another begins, and of those that are to begin
the one with the longest time goes first (Hydra's Sharded-LRTF, applied to steps). Applied to segments, it makes equal
members move in lockstep: all activations at once on the device, and a host that idles while everybody computes and is
waited for by everybody afterwards (measured: docs/log.md). A member that was ready and passed over too often goes
first. Backward is not cut: autograd has one thread a device, and nothing in it waits for the host anyway.
"""

import concurrent.futures
import dataclasses
from collections.abc import Callable, Sequence

import torch

from dovetail.planning.techniques.resident import CUDA_HOST_BYTES
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
from dovetail.train.spill import SPILL, SpillKnobs, SpillSession
from dovetail.train.spill.device_resources import DeviceResources
from dovetail.train.spill.forecast import Forecast, pace
from dovetail.train.spill.host_updates import HostUpdates
from dovetail.train.spill.segments import LiveSegment

# How often a member that is ready may be passed over, for each member of the gang.
_PATIENCE = 16
_MARGIN = 0.03


class Interleave(Technique):
    """Two or more tasks, each of which spill could train alone."""

    name = "interleave"
    exactness = SPILL.exactness

    def refuse(self, members: Members) -> str | None:
        """What spill refuses, and fewer than two."""
        if len(members) < 2:
            return f"interleave trains two tasks or more, got {len(members)}"
        parameters = [parameter for member in members for parameter in member.training.model.parameters()]
        if len(set(parameters)) < len(parameters):
            return "tasks must have models of their own; two share one, or a part of one"
        found = ((number, SPILL.refuse([member])) for number, member in enumerate(members, start=1))
        return next((f"task {number} of {len(members)}: {reason}" for number, reason in found if reason), None)

    def open(self, members: Members, *, device: torch.device, threads: int, knobs: Knobs = NO_KNOBS) -> TrainingSession:
        """A session whose budgets are the whole gang's."""
        self.check(members)
        return InterleaveSession(members, device=device, threads=threads, knobs=SpillKnobs.read(knobs))


INTERLEAVE = Interleave()


def _segment_of(error: BaseException) -> LiveSegment | None:
    segment: LiveSegment | None = getattr(error, "segment", None)
    return segment


class Turnstile:
    """Whose turn it is. Members wait here at the entry of each segment; one is let through at a time."""

    def __init__(self, updates: HostUpdates, count: int) -> None:
        self._updates, self._changed = updates, updates.changed
        self._waiting: dict[int, LiveSegment | None] = {}
        self._running: int | None = None
        self._passed = [0] * count
        self._begun: list[int] = []
        self.remaining: list[Callable[[], int]] = []
        """For each member, how many segments it has yet to enter in this step."""

    def begin(self, member: int) -> None:
        """Wait for the first turn of a step."""
        self._wait(member, None)

    def enter(self, member: int, segment: LiveSegment, aside: Callable[[], Callable[[], None]]) -> None:
        """Wait for this member's turn to compute a segment; another goes first where that is better."""
        with self._changed:
            if self._running != member:  # evaluating, saving: nobody else is under way
                return
            if not self._waiting and self._is_ready(segment):
                return
            self._waiting[member], self._running = segment, None
            if self._choice() == member:
                self._take(member)
                return
            put_back = aside()
        self._wait(member, segment)
        put_back()

    def end(self, member: int) -> None:
        """Note that a member's step is over, or failed."""
        with self._changed:
            self._waiting.pop(member, None)
            if member in self._begun:
                self._begun.remove(member)
            if self._running == member:
                self._running = None
            self._changed.notify_all()

    def _wait(self, member: int, segment: LiveSegment | None) -> None:
        with self._changed:
            self._waiting[member] = segment
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._running is None and self._choice() == member)
            self._take(member)

    def _take(self, member: int) -> None:
        del self._waiting[member]
        for other, segment in self._waiting.items():
            self._passed[other] += self._is_ready(segment)
        self._passed[member] = 0
        self._running = member
        if member not in self._begun:
            self._begun.append(member)

    def _choice(self) -> int | None:
        ready = [member for member, segment in self._waiting.items() if self._is_ready(segment)]
        if not ready:
            # All wait for the host. After a failed update nobody would ever be ready: go on and meet the error.
            return min(self._waiting) if self._updates.has_failed and self._waiting else None
        worst = max(ready, key=lambda member: (self._passed[member], -member))
        if self._passed[worst] > _PATIENCE * len(self._passed):
            return worst
        under_way = [member for member in self._begun if member in ready]
        return under_way[0] if under_way else max(ready, key=lambda member: (self.remaining[member](), -member))

    def _is_ready(self, segment: LiveSegment | None) -> bool:
        return segment is None or self._updates.is_done(segment)


class InterleaveSession(GangSession[SpillSession]):
    """A gang of spilled trainings that share one device, its arenas and the host's threads."""

    def __init__(
        self, members: Sequence[SessionMember], *, device: torch.device, threads: int, knobs: SpillKnobs
    ) -> None:
        self._device = device
        self._budget = knobs.device_budget(device)
        self._knobs = dataclasses.replace(knobs, device_bytes=self._budget, host_bytes=knobs.host_budget())
        self._resources = DeviceResources(device, threads=threads)
        self._turnstile = Turnstile(self._resources.updates, len(members))
        self._members = []
        self._threads: concurrent.futures.ThreadPoolExecutor | None = None
        self._settled = device.type == "cpu"
        self._rounds = self._working_bytes = 0
        try:
            for number, member in enumerate(members):
                self._members.append(self._open(number, member, device, threads, len(members)))
        except BaseException as error:
            self.close()
            error.member = len(self._members)  # type: ignore[attr-defined]
            raise
        self._turnstile.remaining = [session.remaining for session in self._members]
        self._furnish()
        self._threads = concurrent.futures.ThreadPoolExecutor(len(members))

    def advance(self, live: Sequence[int] = (0,)) -> list[StepReport]:
        """Take one step of each live member, at the same time."""
        assert self._threads is not None
        futures = [self._threads.submit(self._step, member) for member in live]
        concurrent.futures.wait(futures)
        for place, future in enumerate(futures):
            if (error := future.exception()) is not None:
                # Whose fault it was, by its place among the live: a failed update is met by whoever waits first.
                guilty = [p for p, number in enumerate(live) if self._members[number].owns(_segment_of(error))]
                error.member = guilty[0] if guilty else place  # type: ignore[attr-defined]
                raise error
        reports = [future.result()[0] for future in futures]
        if not self._settled:
            self._look()
        return reports

    def close(self) -> None:
        """Close the sessions of all members, and the resources that they share."""
        if self._threads is not None:
            self._threads.shutdown()
        super().close()
        self._resources.close()

    def drain(self) -> None:
        """Wait until every update is done."""
        for session in self._members:
            session.drain()

    def forget_rates(self) -> None:
        """Judge how fast updates are by those from here on."""
        self._resources.updates.forget_rates()

    def forecast(self) -> Forecast:
        """The bytes and the pace of the whole gang."""
        each = [session.forecast() for session in self._members]
        peak = self._working_bytes + sum(session.kept_bytes for session in self._members)
        timed = [timed for session in self._members if (timed := session.timed_segments()) is not None]
        whole = len(timed) == len(self._members)
        clip = any(session.waits for session in self._members)
        return Forecast(
            device_bytes=peak + self._resources.arena_bytes,
            host_bytes=sum(one.host_bytes - CUDA_HOST_BYTES for one in each) + CUDA_HOST_BYTES,
            pinned_bytes=sum(one.pinned_bytes for one in each),
            disk_bytes=sum(one.disk_bytes for one in each),
            pace=pace(timed, rates=self._members[0].rates(), clip=clip) if whole else None,
        )

    def _open(self, number: int, member: SessionMember, device: torch.device, threads: int, count: int) -> SpillSession:
        def turnstile(segment: LiveSegment) -> None:
            self._turnstile.enter(number, segment, session.put_aside)

        share = {
            name: value // count for name in ("device_bytes", "disk_bytes") if (value := getattr(self._knobs, name))
        }
        assert self._knobs.host_bytes is not None
        # The process itself is there once, and each member counts it.
        share["host_bytes"] = (self._knobs.host_bytes - CUDA_HOST_BYTES) // count + CUDA_HOST_BYTES
        session = SpillSession(
            member,
            device=device,
            threads=threads,
            knobs=dataclasses.replace(self._knobs, **share),
            resources=self._resources,
            turnstile=turnstile,
        )
        return session

    def _step(self, member: int) -> list[StepReport]:
        self._turnstile.begin(member)
        try:
            return self._members[member].advance()
        finally:
            self._turnstile.end(member)

    def _furnish(self) -> None:
        self._resources.allocate([session.room for session in self._members])

    def _look(self) -> None:
        """The first round touches everything once; the second shows what all of them take beside each other."""
        torch.cuda.synchronize(self._device)
        self._rounds += 1
        if self._rounds == 2:
            self._settle()
        torch.cuda.reset_peak_memory_stats(self._device)

    def _settle(self) -> None:
        """Share out what is left of the device's memory."""
        held = sum(session.kept_bytes for session in self._members) + self._resources.arena_bytes
        before = torch.cuda.memory_allocated(self._device) - held  # what others hold
        self._working_bytes = torch.cuda.max_memory_allocated(self._device) - held - before
        left = max(0, int(self._budget * (1 - _MARGIN)) - held - self._working_bytes)
        for session in self._members:  # whose segments are kept does not matter: the host's work is one queue
            left -= session.keep_within(left)
        self._furnish()
        self.forget_rates()
        torch.cuda.empty_cache()
        self._settled = True
