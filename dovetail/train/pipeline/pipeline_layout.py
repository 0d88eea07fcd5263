"""What the knobs of a pipelined option say: how many stages and replicas, which timetable, how many microbatches.

Everything that can be told before a model is built is checked here. Knows timetables; knows nothing of models.
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from dovetail.planning.pipeline.timetables import ASYNCHRONOUS, SPARING, TIMETABLES, Timetable, check
from dovetail.vocabulary import InvalidRecord, TechniqueRefused

_KNOBS = ("timetable", "microbatches", "stages", "replicas", "copies", "recompute", "chunks", "spare")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PipelineLayout:
    """A pipeline as its ranks agree on it. `stages` are the names of each stage's layers; None: about as many each.

    >>> layout = PipelineLayout.read({"timetable": "1f1b"}, size=2, accumulate=4)
    >>> layout.replicas, layout.microbatches, layout.depth
    ((1, 1), 4, 2)
    """

    timetable: str
    microbatches: int
    replicas: tuple[int, ...]
    stages: tuple[tuple[str, ...], ...] | None
    recompute: bool
    chunks: int
    spare: int | None = None
    """How many microbatches are in flight beyond what the timetable needs; None: as many as it has by default."""

    @staticmethod
    def read(knobs: Mapping[str, Any], *, size: int, accumulate: int) -> "PipelineLayout":
        """The layout of so many ranks for a training that accumulates so many batches. Raises `TechniqueRefused`."""
        if unknown := sorted(set(knobs) - set(_KNOBS)):
            raise TechniqueRefused(f"knobs of a pipeline must be among {list(_KNOBS)}, got {unknown}.")
        timetable = knobs.get("timetable", "1f1b")
        if timetable not in TIMETABLES:
            raise TechniqueRefused(f"the timetable must be one of {sorted(TIMETABLES)}, got {timetable!r}.")
        copies = knobs.get("copies", 1)
        replicas = tuple(count * copies for count in knobs.get("replicas", (1,) * size))
        if sum(replicas) != size:
            raise TechniqueRefused(
                f"a pipeline must have one rank for each replica of each stage: {list(replicas)} are {sum(replicas)} "
                f"ranks, there are {size}."
            )
        microbatches = knobs.get("microbatches", accumulate)
        if microbatches < 1 or microbatches % accumulate:
            raise TechniqueRefused(
                f"a step's microbatches must be a multiple of the {accumulate} batches it accumulates, "
                f"got {microbatches}."
            )
        stages, spare = knobs.get("stages"), knobs.get("spare")
        if spare is not None and (not isinstance(spare, int) or spare < 0):
            raise TechniqueRefused(f"microbatches to spare must be a whole number, 0 or more, got {spare!r}.")
        layout = PipelineLayout(
            timetable=timetable,
            microbatches=microbatches,
            replicas=replicas,
            stages=None if stages is None else tuple(tuple(names) for names in stages),
            recompute=bool(knobs.get("recompute", False)),
            chunks=knobs.get("chunks", 2) if timetable == "interleaved" else 1,
            spare=spare if timetable in SPARING else None,
        )
        layout._check_stages()
        if not layout.is_asynchronous:
            layout.step()  # refuses what its timetable does not allow
        return layout

    def _check_stages(self) -> None:
        if self.stages is not None and len(self.stages) != self.depth:
            raise TechniqueRefused(
                f"there must be layers for each of {self.depth} stages, got {len(self.stages)} lists of layers."
            )
        uneven = [count for count in self.replicas if self.microbatches % count]
        if self.is_asynchronous and uneven:
            raise TechniqueRefused(
                f"{self.timetable!r} must have a multiple of every stage's replicas as microbatches of a step, got "
                f"{self.microbatches} for {list(self.replicas)}."
            )

    @property
    def depth(self) -> int:
        """How many stages there are, chunks included."""
        return len(self.replicas) * self.chunks

    @property
    def is_asynchronous(self) -> bool:
        """Whether stages update their weights while other microbatches are under way."""
        return self.timetable in ASYNCHRONOUS

    def step(self) -> Timetable:
        """The timetable of one step, with a flush at its end, checked: nothing in it can wait for itself."""
        assert not self.is_asynchronous
        knobs = {"chunks": self.chunks} if self.timetable == "interleaved" else {}
        return self._build(microbatches=self.microbatches, **knobs)

    def run(self, steps: int) -> Timetable:
        """The timetable of so many steps without a flush between them, checked."""
        assert self.is_asynchronous
        if self.timetable == "2bw":
            return self._build(microbatches=self.microbatches, steps=steps)
        return self._build(microbatches=self.microbatches * steps)

    def _build(self, **knobs: int) -> Timetable:
        if self.spare is not None:
            knobs["spare"] = self.spare
        try:
            made = TIMETABLES[self.timetable](self.replicas, **knobs)
            check(made)
        except InvalidRecord as error:
            raise TechniqueRefused(str(error)) from error
        return made

    def text(self) -> str:
        """All of it in words, to see whether ranks agree."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)
