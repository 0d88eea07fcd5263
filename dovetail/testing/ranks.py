"""Real ranks for tests: this process is rank 0, the others are started once and open what they are told to.

```python
import pytest
from dovetail.testing.ranks import Followers, RankedConformance

@pytest.fixture(scope="module")
def followers():
    with Followers(size=2) as followers:
        yield followers

@pytest.mark.process
class TestMine(RankedConformance):
    technique = MINE
    tolerance = 1e-6
```
"""

import multiprocessing
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

import pytest
import torch

from dovetail.testing import programs
from dovetail.testing.techniques import STEPS, TechniqueConformance
from dovetail.train import RESIDENT, Ranks, SessionMember, Training, TrainingSession
from dovetail.train.numeric import open_session
from dovetail.train.ranked_session import RankedSession
from dovetail.train.ranks import RankedTechnique
from dovetail.train.schedulers import steps_on_metrics
from dovetail.vocabulary import FrozenDict

BF16 = 2.0**-8
PATIENCE_SECONDS = 30.0
FEW = ("accumulate", "dropout")
Build = str | Callable[[], Training]


class Followers:
    """Ranks 1 and on, each in a process of its own. One session at a time: opening another closes the one before."""

    def __init__(self, *, size: int = 2, patience_seconds: float = PATIENCE_SECONDS) -> None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        self._folder = tempfile.TemporaryDirectory()
        meeting = f"file://{self._folder.name}/meeting"
        context = multiprocessing.get_context("spawn")
        self._ends: list[Connection[Any, Any]] = []
        self._processes = []
        for rank in range(1, size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, rank, size, meeting, patience_seconds), daemon=True)
            process.start()
            theirs.close()
            self._ends.append(ours)
            self._processes.append(process)
        self.ranks = Ranks(rank=0, size=size, rendezvous=meeting, patience_seconds=patience_seconds)
        self.ranks.join(torch.device("cpu"))
        self._session: RankedSession | None = None

    @property
    def processes(self) -> list[int]:
        """The other ranks' processes, by their numbers."""
        return [process.pid for process in self._processes if process.pid is not None]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def open(
        self, technique: RankedTechnique, build: Build, *, knobs: Mapping[str, Any] = FrozenDict()
    ) -> TrainingSession:
        """A session of all ranks, each with its own build of the program."""
        return self.session(technique, programs.fresh(build), build, knobs=knobs)

    def session(
        self,
        technique: RankedTechnique,
        member: SessionMember,
        build: Build,
        *,
        knobs: Mapping[str, Any] = FrozenDict(),
    ) -> TrainingSession:
        """The same, with what rank 0 has built already."""
        self._part()
        for end in self._ends:
            end.send((technique, build, dict(knobs)))
        here = technique.among(self.ranks)
        session = open_session(here, [member], device=torch.device("cpu"), threads=1, knobs=knobs)
        assert isinstance(session, RankedSession)
        self._session = session
        return session

    def errors(self) -> list[str]:
        """What went wrong on each of the other ranks with the last session, which broke there too."""
        self._session = None
        if not all(end.poll(PATIENCE_SECONDS) for end in self._ends):
            raise AssertionError("what breaks a session on rank 0 must break it on the others, or they wait for ever")
        return [end.recv() for end in self._ends]

    def _part(self) -> None:
        if self._session is not None:
            self._session.close()
            if self._session.is_broken:
                self.errors()
            self._session = None

    def close(self) -> None:
        """End all. May be called twice."""
        self._part()
        for end in self._ends:
            end.close()
        self._ends = []
        self.ranks.leave()
        for process in self._processes:
            process.join(10)
            process.kill()
        self._folder.cleanup()


class RankedConformance(TechniqueConformance):
    """The laws of a technique whose sessions are of several ranks. Needs the fixture `followers`.

    Some are tried with fewer programs: a step takes ten times as long here, most of it waiting.
    """

    technique: RankedTechnique
    stops = (3,)

    @pytest.fixture(autouse=True)
    def _among(self, followers: Followers) -> None:
        self._followers = followers
        self._programs: dict[int, str] = {}

    @pytest.mark.parametrize("program", FEW)
    def test_stopping_after_every_step_changes_nothing(self, program: str, tmp_path: Path) -> None:
        super().test_stopping_after_every_step_changes_nothing(program, tmp_path)

    @pytest.mark.parametrize("program", FEW)
    def test_what_happened_before_changes_no_draw(self, program: str) -> None:
        super().test_what_happened_before_changes_no_draw(program)

    @pytest.mark.parametrize("program", FEW)
    def test_evaluating_changes_nothing(self, program: str) -> None:
        super().test_evaluating_changes_nothing(program)

    @pytest.mark.parametrize("program", FEW)
    def test_a_state_can_be_loaded_twice(self, program: str) -> None:
        super().test_a_state_can_be_loaded_twice(program)

    @pytest.mark.parametrize("program", sorted(programs.PROGRAMS))
    def test_one_device_gives_the_same(self, program: str) -> None:
        """Dropout included, and whoever goes on with it."""
        alone, losses = self._run(RESIDENT.open([self.fresh(program)], device=self.device, threads=1), STEPS)
        found, first = self._run(self._open(program), STEPS - 2)
        resident = RESIDENT.open([self.fresh(program)], device=self.device, threads=1)
        resident.load(found[0])
        states, rest = self._run(resident, 2)
        if self.fresh(program).training.precision != "fp32":
            self.tolerance = max(self.tolerance, BF16)  # a last bit of a weight is now and then one of bf16
        self._assert_losses(first + rest, losses)
        self._assert_states(states, alone)

    def fresh(self, program: str) -> SessionMember:
        """Built here; the other ranks build their own when a session is opened."""
        member = programs.fresh(program)
        self._programs[id(member.training)] = program
        self._observes = steps_on_metrics(member.training)
        return member

    def _session(self, members: Sequence[SessionMember]) -> TrainingSession:
        if self.technique.refuse(members):
            return self.technique.open(members, device=self.device, threads=self.threads)  # raises
        (member,) = members
        return self._followers.session(self.technique, member, self._programs[id(member.training)])


def _serve(end: "Connection[Any, Any]", rank: int, size: int, meeting: str, patience_seconds: float) -> None:
    torch.set_num_threads(1)
    ranks = Ranks(rank=rank, size=size, rendezvous=meeting, patience_seconds=patience_seconds)
    ranks.join(torch.device("cpu"))
    while True:
        try:
            technique, build, knobs = end.recv()
        except EOFError:
            break
        assert isinstance(technique, RankedTechnique)
        try:
            members = [programs.fresh(build)]
            here = technique.among(ranks)
            session = open_session(here, members, device=torch.device("cpu"), threads=1, knobs=knobs)
            assert isinstance(session, RankedSession)
            session.follow()
        except Exception as error:
            end.send(f"{type(error).__name__}: {error}")
    ranks.leave()
