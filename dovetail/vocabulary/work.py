"""What is to be trained: programs, tasks, when they stop, and workloads."""

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Mapping
from typing import Any

from dovetail.vocabulary.errors import InvalidRecord, InvalidWorkload
from dovetail.vocabulary.objectives import Objective
from dovetail.vocabulary.records import FrozenDict, dumps


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A function that builds a `Training`, by reference: `file.py:function`, `package.module:function`,
    or `pickle:name` for one that only the store's private directory holds.

    `source` is a digest of the code the function reaches in its own files, so that an edit of the
    model makes another program and an edit of the sweep around it does not.

    >>> Program(reference="sweep.py:charlm", source="9f2c").function
    'charlm'
    """

    reference: str
    source: str = ""

    def __post_init__(self) -> None:
        place, colon, function = self.reference.rpartition(":")
        if not (place and colon and function):
            raise InvalidWorkload(
                f"a program must be named 'file.py:function' or 'package.module:function', got {self.reference!r}."
            )

    @property
    def function(self) -> str:
        """The function's name."""
        return self.reference.rpartition(":")[2]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """When a task is done: after `steps` or `epochs`, or earlier, once `metric` reaches its target.

    >>> Stop(steps=5000, metric="accuracy", at_least=0.94).reached({"accuracy": 0.95})
    True
    """

    steps: int | None = None
    epochs: int | None = None
    metric: str | None = None
    at_least: float | None = None
    at_most: float | None = None

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise InvalidWorkload(
                f"a task must stop after a number of steps or of epochs, one of the two, "
                f"got steps={self.steps} and epochs={self.epochs}."
            )
        for unit in ("steps", "epochs"):
            count = getattr(self, unit)
            if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
                raise InvalidWorkload(f"{unit} must be a whole number of at least 1, got {count!r}.")
        targets = (self.at_least is not None) + (self.at_most is not None)
        if targets != (self.metric is not None):
            raise InvalidWorkload(
                f"a target must be a metric with either at_least or at_most, "
                f"got metric={self.metric!r}, at_least={self.at_least}, at_most={self.at_most}."
            )

    def reached(self, metrics: Mapping[str, float]) -> bool:
        """Whether these metrics meet the target; without a target, never."""
        if self.metric is None or self.metric not in metrics:
            return False
        value = metrics[self.metric]
        return value >= self.at_least if self.at_least is not None else value <= (self.at_most or 0.0)

    def last_step(self, steps_per_epoch: int | None) -> int:
        """The step after which training ends whatever the metrics say."""
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        if not steps_per_epoch:
            raise InvalidWorkload(
                "stopping by epochs must go with batches that have a length; these have none. "
                "Give them __len__, or stop by steps."
            )
        return self.epochs * steps_per_epoch

    def __str__(self) -> str:
        limit = f"{self.steps} steps" if self.steps is not None else f"{self.epochs} epochs"
        if self.metric is None:
            return limit
        sign, value = ("≥", self.at_least) if self.at_least is not None else ("≤", self.at_most)
        return f"{self.metric} {sign} {value:g}, at most {limit}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One model to train.

    Its `identity` says who it is across runs: its name, program, code and parameters, but not how long it trains,
    so that a task given more steps goes on from where it was. `begins_with` is a digest of the checkpoint whose weights
    it begins with, where that is not what its program builds; it is part of the identity too.

    >>> task = Task(name="small", program=Program(reference="a.py:f"), parameters={"seed": 3}, stop=Stop(steps=9))
    >>> task.seed, len(task.identity)
    (3, 16)
    """

    name: str
    program: Program
    parameters: Mapping[str, Any] = FrozenDict()
    stop: Stop
    begins_with: str = ""
    identity: str = dataclasses.field(init=False, repr=False, compare=False, default="")

    def __post_init__(self) -> None:
        object.__setattr__(self, "parameters", FrozenDict(self.parameters))
        if not _is_text(self.name):
            raise InvalidWorkload(f"a task's name must be text, and all of it UTF-8, got {self.name!r}.")
        if not self.name or "/" in self.name or self.name.startswith("."):
            raise InvalidWorkload(f"a task's name must be non-empty, without '/' or a leading dot, got {self.name!r}.")
        seed = self.parameters.get("seed", 0)
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise InvalidWorkload(f"a task's parameter 'seed' must be a whole number, got {seed!r}.")
        place = self.program.reference.rpartition("/")[2]  # a project that moves stays who it was
        # Refuses parameters that are not plain data.
        said = [self.name, place, self.program.source, sorted(self.parameters.items())]
        text = dumps([*said, self.begins_with] if self.begins_with else said)
        object.__setattr__(self, "identity", hashlib.sha256(text.encode()).hexdigest()[:16])

    @property
    def seed(self) -> int:
        """What seeds the task: its parameter `seed`, else 0."""
        return int(self.parameters.get("seed", 0))


def _is_text(given: object) -> bool:
    """Names of files that are not UTF-8 have halves of characters, which cannot be stored."""
    return isinstance(given, str) and given.encode(errors="replace").decode() == given


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Halving:
    """Successive halving over all tasks of a workload: at `first_steps`, and at each `factor` times as
    many, tasks wait for one another, and the best 1/`factor` of them go on.

    >>> Halving(metric="accuracy", first_steps=100, factor=3).rungs(1000)
    (100, 300, 900)
    """

    metric: str
    first_steps: int
    factor: int = 3
    goal: str = "max"

    def __post_init__(self) -> None:
        if self.first_steps < 1 or self.factor < 2 or self.goal not in ("max", "min"):
            raise InvalidWorkload(
                f"halving must have first_steps of at least 1, a factor of at least 2 and goal 'max' or 'min', "
                f"got first_steps={self.first_steps}, factor={self.factor}, goal={self.goal!r}."
            )

    def rungs(self, last_step: int) -> tuple[int, ...]:
        """The steps before `last_step` at which tasks are compared."""
        rungs, step = [], self.first_steps
        while step < last_step:
            rungs.append(step)
            step *= self.factor
        return tuple(rungs)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Tasks and an objective. The name says which workload of a store this is; one from a file may leave it out. To one
    that is `open`, a daemon's, tasks come and go. `deadlines` say of some tasks, by name, in how many seconds from the
    beginning of a run they must have ended.

    >>> task = Task(name="a", program=Program(reference="a.py:f"), stop=Stop(steps=9))
    >>> len(Workload(name="one", tasks=(task,)).tasks)
    1
    """

    name: str
    tasks: tuple[Task, ...]
    objective: str = "makespan"
    halving: Halving | None = None
    open: bool = False
    deadlines: Mapping[str, float] = FrozenDict()

    def __post_init__(self) -> None:
        object.__setattr__(self, "deadlines", FrozenDict(self.deadlines))
        if not (self.tasks or self.open):
            raise InvalidWorkload(f"workload {self.name!r} must have at least one task; it has none.")
        twice = sorted(name for name, count in Counter(task.name for task in self.tasks).items() if count > 1)
        if twice:
            raise InvalidWorkload(
                f"tasks of a workload must have names of their own; {', '.join(map(repr, twice[:5]))} "
                f"{'is' if len(twice) == 1 else 'are'} there more than once. Rename or drop the copies."
            )
        unknown = sorted(set(self.deadlines) - {task.name for task in self.tasks})
        if unknown:
            raise InvalidWorkload(f"a deadline must be for a task of the workload; there is no {unknown[0]!r}.")
        past = [name for name, seconds in self.deadlines.items() if not seconds > 0]
        if past:
            raise InvalidWorkload(f"a deadline must lie ahead, got {self.deadlines[past[0]]} s for {past[0]!r}.")
        try:
            Objective.parse(self.objective)
        except InvalidRecord as error:
            raise InvalidWorkload(str(error)) from None
