"""A feed in virtual time: workers that wait and compute, items in order, bounded buffers, cores that all share.

It knows nothing of the planner's formulas: throughput is what comes out at the end. Cores are shared evenly by all who
compute (processor sharing, kept in virtual time, so that an event takes a heap's step however many compute).
"""

import dataclasses
import heapq
import itertools
from collections import deque
from collections.abc import Callable

Seconds = Callable[[int], float]


@dataclasses.dataclass(kw_only=True)
class SimulatedStage:
    """A stage: what item n takes, of what, how many items of the stage before make one, and what it may hold."""

    name: str
    waits: Seconds = lambda item: 0.0
    computes: Seconds = lambda item: 0.0
    inputs: int = 1
    workers: int = 1
    buffer_items: int = 16
    busy: int = 0
    """Workers at an item."""
    begun: int = 0
    given: int = 0
    """Items that went on, in order."""
    finished: dict[int, None] = dataclasses.field(default_factory=dict)
    """Items that wait for their turn."""
    queue: deque[int] = dataclasses.field(default_factory=deque)
    """Items that wait for the next stage."""
    made: int = 0
    busy_seconds: float = 0.0
    cpu_seconds: float = 0.0
    most_waiting: int = 0


class SimulatedFeed:
    """A feed whose consumer takes whatever there is, one item every `consumer_seconds`."""

    def __init__(self, stages: list[SimulatedStage], *, cores: float, consumer_seconds: float = 0.0) -> None:
        self.stages, self._cores, self._consumer_seconds = stages, cores, consumer_seconds
        self.now = 0.0
        self.consumed: list[float] = []
        """When each item left the feed."""
        self._computed = 0.0  # what each who computes has had of a core since the beginning
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._computing: list[tuple[float, int, Callable[[], None]]] = []
        self._number = itertools.count()
        self._consuming = False

    def run(self, until: float, *, every: float | None = None, look: Callable[[], None] = lambda: None) -> None:
        """Go on until this moment; `look` is called every so many seconds, and may change a stage's workers."""
        ahead = self.now + every if every is not None else until
        self._start()
        while self.now < until:
            stop = min(ahead, until)
            if not self._step(stop) and self.now >= stop:
                if every is not None and self.now >= ahead:
                    ahead += every
                    look()
                    self._start()
                if self.now >= until:
                    return

    def _step(self, stop: float) -> bool:
        """The next event before `stop`, if there is one; else stand there."""
        share = min(1.0, self._cores / len(self._computing)) if self._computing else 1.0
        timer = self._timers[0][0] if self._timers else float("inf")
        done = self.now + (self._computing[0][0] - self._computed) / share if self._computing else float("inf")
        at = min(timer, done)
        if at > stop:
            self._computed += (stop - self.now) * share
            self.now = stop
            return False
        self._computed += max(0.0, at - self.now) * share
        self.now = at
        _, _, action = heapq.heappop(self._timers if timer <= done else self._computing)
        action()
        self._start()
        return True

    def _after(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (self.now + seconds, next(self._number), action))

    def _compute(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._computing, (self._computed + seconds, next(self._number), action))

    def _start(self) -> None:
        """Let everybody begin who can; what one begins may let another."""
        while any([*(self._begin(number) for number in range(len(self.stages))), self._consume()]):
            pass

    def _begin(self, number: int) -> bool:
        stage, before = self.stages[number], self.stages[number - 1] if number else None
        held = stage.busy + len(stage.finished) + len(stage.queue)
        if stage.busy >= stage.workers or held >= stage.workers + stage.buffer_items:
            return False
        if before is not None:
            if len(before.queue) < stage.inputs:
                return False
            for _ in range(stage.inputs):
                before.queue.popleft()
        item, began = stage.begun, self.now
        stage.begun += 1
        stage.busy += 1
        self._after(
            stage.waits(item), lambda: self._compute(stage.computes(item), lambda: self._end(stage, item, began))
        )
        return True

    def _end(self, stage: SimulatedStage, item: int, began: float) -> None:
        stage.busy -= 1
        stage.made += 1
        stage.busy_seconds += self.now - began
        stage.cpu_seconds += stage.computes(item)
        stage.finished[item] = None
        while stage.given in stage.finished:
            del stage.finished[stage.given]
            stage.queue.append(stage.given)
            stage.given += 1
        stage.most_waiting = max(stage.most_waiting, len(stage.queue) + len(stage.finished))

    def _consume(self) -> bool:
        if self._consuming or not self.stages[-1].queue:
            return False
        self.stages[-1].queue.popleft()
        self.consumed.append(self.now)
        if self._consumer_seconds:
            self._consuming = True
            self._after(self._consumer_seconds, self._free)
        return True

    def _free(self) -> None:
        self._consuming = False

    def rate(self, since: float) -> float:
        """Items per second that left the feed since this moment."""
        return sum(at > since for at in self.consumed) / (self.now - since)
