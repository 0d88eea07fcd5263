"""What is to be trained: programs, tasks, when they stop, and workloads."""

import dataclasses
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NewType

from dovetail.vocabulary.approximations import parse_allow
from dovetail.vocabulary.errors import InvalidRecord, InvalidWorkload
from dovetail.vocabulary.objectives import Objective
from dovetail.vocabulary.records import FrozenDict, check_bounds, dumps
from dovetail.vocabulary.units import parse_bytes, show_bytes

TaskId = NewType("TaskId", str)
"""Who a task is across runs: a digest of its name, program, code and parameters."""

# A float holds every whole number up to here, and so does whatever counts steps.
MOST_STEPS = 1 << 53
# Whoever lists tasks is given the parameters of all of them.
_TASK_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A function that builds a `Training`, by reference: `file.py:function`, `package.module:function`,
    or `pickle:digest:function` for one that only the store's private directory holds.

    `source` is a digest of the code the function reaches in its own files, so that an edit of the
    model makes another program and an edit of the sweep around it does not. `root` is the folder from which a module
    that is not installed is imported, so that whoever loads it need not be where it was described.

    >>> Program(reference="sweep.py:charlm", source="9f2c").function
    'charlm'
    """

    reference: str
    source: str = ""
    root: str = ""

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


_MAXIMISED = ("acc", "f1", "auc", "precision", "recall", "bleu", "rouge", "score", "reward", "return", "iou", "psnr")
_MINIMISED = ("loss", "error", "perplexity")
# As whole words alone: "map" also begins "mape".
_MAXIMISED_WORDS = frozenset(("r2", "map", "ndcg", "mrr", "dice", "ssim", "mcc"))
_MINIMISED_WORDS = frozenset(
    ("mse", "rmse", "mae", "mape", "rmsle", "nll", "ppl", "bpb", "bpc", "bpd", "wer", "cer", "fid")
)


def name_tasks(text: str, names: Mapping[TaskId, str]) -> str:
    """A text in which tasks stand by their identities, with these names of theirs instead.

    >>> name_tasks("9f2c1d: resident on 1 × cpu", {TaskId("9f2c1d"): "lr=0.1"})
    'lr=0.1: resident on 1 × cpu'
    """
    return re.sub(r"\w+", lambda word: names.get(TaskId(word[0]), word[0]), text)


def suggest_goal(metric: str) -> str | None:
    """Whether a metric is to be `max` or `min`, as far as its name tells.

    >>> suggest_goal("loss"), suggest_goal("valid_accuracy"), suggest_goal("val/rmse"), suggest_goal("speed")
    ('min', 'max', 'min', None)
    """
    lower = metric.lower()
    words = set(re.split(r"[^a-z0-9]+", lower))
    if any(word in lower for word in _MINIMISED) or words & _MINIMISED_WORDS:
        return "min"
    return "max" if any(word in lower for word in _MAXIMISED) or words & _MAXIMISED_WORDS else None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """When a task is done: after `steps` or `epochs`, or earlier, once `metric` reaches its target, or once it has not
    improved for `patience` regular evaluations. `goal` says whether more is better ("max") or less ("min"); without it
    that follows from the target or, for names such as accuracy or loss, from the metric's name.

    >>> Stop(steps=5000, metric="accuracy", at_least=0.94).reached({"accuracy": 0.95})
    True
    >>> print(Stop(epochs=90, metric="valid_loss", patience=5))
    valid_loss not better for 5 evaluations, at most 90 epochs
    """

    steps: int | None = None
    epochs: int | None = None
    metric: str | None = None
    at_least: float | None = None
    at_most: float | None = None
    patience: int | None = None
    goal: str | None = None

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise InvalidWorkload(
                f"a task must stop after a number of steps or of epochs, one of the two, "
                f"got steps={self.steps} and epochs={self.epochs}."
            )
        for unit in ("steps", "epochs", "patience"):
            count = getattr(self, unit)
            if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
                raise InvalidWorkload(f"{unit} must be a whole number of at least 1, got {count!r}.")
            if count is not None and count > MOST_STEPS:
                raise InvalidWorkload(f"{unit} must be at most {MOST_STEPS}, got one of {count.bit_length()} bits.")
        targets = (self.at_least is not None) + (self.at_most is not None)
        if targets > 1 or (self.metric is not None) != bool(targets or self.patience):
            raise InvalidWorkload(
                f"a target must be a metric with either at_least or at_most, or with patience, "
                f"got metric={self.metric!r}, at_least={self.at_least}, at_most={self.at_most}."
            )
        self._check_goal()

    def _check_goal(self) -> None:
        implied = "max" if self.at_least is not None else "min" if self.at_most is not None else None
        if self.goal not in (None, "max", "min") or (implied and self.goal not in (None, implied)):
            raise InvalidWorkload(f"a goal must be {implied or 'max or min'} for {self.metric!r}, got {self.goal!r}.")
        if self.goal is not None and self.metric is None:
            raise InvalidWorkload(f"a goal must go with a metric, got goal={self.goal!r} alone.")
        if self.metric is not None and self.direction is None:
            raise InvalidWorkload(
                f"patience must know whether more of {self.metric!r} is better; its name does not say. Give goal='max' "
                f"or goal='min'."
            )

    @property
    def direction(self) -> str | None:
        """Whether the metric is to become large ("max") or small ("min"); None without a metric."""
        if self.metric is None or self.goal is not None:
            return self.goal
        if self.has_target:
            return "max" if self.at_least is not None else "min"
        return suggest_goal(self.metric)

    @property
    def has_target(self) -> bool:
        """Whether the metric has a value to reach."""
        return self.at_least is not None or self.at_most is not None

    def reached(self, metrics: Mapping[str, float]) -> bool:
        """Whether these metrics meet the target; without a target, never."""
        if self.metric is None or not self.has_target or self.metric not in metrics:
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
        return min(self.epochs * steps_per_epoch, MOST_STEPS)

    def __str__(self) -> str:
        limit = f"{self.steps} steps" if self.steps is not None else f"{self.epochs} epochs"
        if self.metric is None:
            return limit
        return f"{self.target}, at most {limit}"

    @property
    def target(self) -> str:
        """What ends it before its last step, in words; empty where nothing does.

        >>> Stop(steps=9, metric="accuracy", at_least=0.8).target
        'accuracy ≥ 0.8'
        """
        sign, value = ("≥", self.at_least) if self.at_least is not None else ("≤", self.at_most)
        found = [f"{self.metric} {sign} {value:g}"] if self.has_target else []
        found += [f"{self.metric} not better for {self.patience} evaluations"] if self.patience is not None else []
        return " or ".join(found)


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
    identity: TaskId = dataclasses.field(init=False, repr=False, compare=False, default=TaskId(""))

    def __post_init__(self) -> None:
        check_bounds(self.parameters, where="a task's parameters")
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
        if len(text) > _TASK_BYTES:
            raise InvalidWorkload(
                f"a task's parameters must take at most {show_bytes(_TASK_BYTES)}, got {show_bytes(len(text))}. Put "
                f"large data into a file, and pass its name."
            )
        object.__setattr__(self, "identity", hashlib.sha256(text.encode()).hexdigest()[:16])

    @property
    def seed(self) -> int:
        """What seeds the task: its parameter `seed`, else 0."""
        return int(self.parameters.get("seed", 0))


def unreadable_task(identity: TaskId, name: str) -> Task:
    """What stands for a task whose record cannot be read: it has its identity and its name, and nothing to train.

    >>> unreadable_task(TaskId("0123456789abcdef"), "a").identity
    '0123456789abcdef'
    """
    found = Task(name=name, program=Program(reference="unreadable:record"), stop=Stop(steps=1))
    object.__setattr__(found, "identity", identity)
    return found


def _is_text(given: object) -> bool:
    """Names of files that are not UTF-8 have halves of characters, which cannot be stored."""
    return isinstance(given, str) and given.encode(errors="replace").decode() == given


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Halving:
    """Successive halving over all tasks of a workload: at `first_steps`, and at each `factor` times as
    many, tasks wait for one another, and the best 1/`factor` of them go on.

    If `asynchronous` (ASHA), nobody waits: each task is judged as it arrives at a rung, and goes on if it is among the
    best 1/`factor` of those that have arrived there so far, itself included, or is the best of them.

    `goal` says whether more is better ("max") or less ("min"); without it the metric's name does, as of a loss, or it
    is "max".

    >>> Halving(metric="accuracy", first_steps=100, factor=3).rungs(1000)
    (100, 300, 900)
    >>> Halving(metric="valid_loss", first_steps=100).goal
    'min'
    """

    metric: str
    first_steps: int
    factor: int = 3
    goal: str | None = None
    asynchronous: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "goal", self.goal or suggest_goal(self.metric) or "max")
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
class Population:
    """Population based training, in generations of `every_steps`: the worst of a search's tasks, the part `replaced` of
    them, are ended, and warm clones of the best as many take their places, with parameters near those of the task they
    are cloned from. The others go on as they are.

    A number becomes itself times one of `factors`; with chance `resampled` a parameter is drawn anew instead. What is
    drawn follows from `seed`, the generation and the place alone, so that a search that was stopped goes on as it would
    have.

    >>> Population(every_steps=100).rungs(400)
    (100, 200, 300)
    """

    every_steps: int
    replaced: float = 0.25
    factors: tuple[float, ...] = (0.8, 1.25)
    resampled: float = 0.25
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "factors", tuple(self.factors))
        if self.every_steps < 1 or not 0 < self.replaced <= 0.5 or not 0 <= self.resampled <= 1:
            raise InvalidWorkload(
                f"a population must have every_steps of at least 1, replaced above 0 and at most 0.5, and resampled "
                f"from 0 to 1, got {self.every_steps}, {self.replaced} and {self.resampled}."
            )
        if not self.factors or not all(0 < factor < float("inf") for factor in self.factors):
            raise InvalidWorkload(f"a population must have factors above 0, got {self.factors}.")

    def rungs(self, last_step: int) -> tuple[int, ...]:
        """The steps before `last_step` at which generations end."""
        return tuple(range(self.every_steps, last_step, self.every_steps))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Tasks, and what is wanted of their training as a whole.

    - `name` says which workload of a store this is; one from a file may leave it out.
    - `objective` is what plans make small (see `Objective`); with `weighted`, `weights` say by task name how much each
      task counts; 1 where nothing is said.
    - `deadlines` say, by task name, within how many seconds from the beginning of a run a task must have ended.
    - `techniques` are those that may be used, or, with a minus, those that may not; all where nothing is said.
    - `allow` names approximations with which tasks may be trained where that is faster, or nothing else fits. `keep`
      says by how much each metric may at most become worse by that: what was not shown to keep to it is not used.
    - With `approximate` all tasks are trained with just these approximations, joined by '+', or with none if it is
      empty; where nothing is said, planners choose.
    - `device_memory_bytes`: accelerators are used as if they had no more memory than this.
    - To a workload that is `open`, a daemon's or a search's, tasks come and go. Those of a `population` rest at the end
      of each generation until the search lets them go on.

    >>> task = Task(name="a", program=Program(reference="a.py:f"), stop=Stop(steps=9))
    >>> workload = Workload(name="one", tasks=(task,), objective="mean", techniques=("-fuse", "-replicate"))
    >>> len(workload.tasks), workload.allows("spill"), workload.allows("fuse")
    (1, True, False)
    """

    name: str
    tasks: tuple[Task, ...]
    objective: str = "makespan"
    halving: Halving | None = None
    open: bool = False
    deadlines: Mapping[str, float] = FrozenDict()
    weights: Mapping[str, float] = FrozenDict()
    techniques: tuple[str, ...] = ()
    device_memory_bytes: int | None = None
    population: Population | None = None
    allow: tuple[str, ...] = ()
    keep: Mapping[str, float] = FrozenDict()
    approximate: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "allow", parse_allow(self.allow))
        object.__setattr__(self, "keep", parse_keep(self.keep))
        parse_allow((self.approximate or "").split("+"))
        object.__setattr__(self, "deadlines", FrozenDict(self.deadlines))
        object.__setattr__(self, "weights", FrozenDict(self.weights))
        object.__setattr__(self, "techniques", parse_techniques(self.techniques))
        self._check_tasks()
        self._check_figures()
        try:
            objective = Objective.parse(self.objective)
        except InvalidRecord as error:
            raise InvalidWorkload(str(error)) from None
        if self.weights and objective.name != "weighted":
            raise InvalidWorkload(f"weights belong to objective 'weighted', got them with {self.objective!r}.")

    @property
    def rung_rule(self) -> Halving | Population | None:
        """What says at which steps tasks rest before their end, if they do."""
        return self.halving or self.population

    def allows(self, technique: str) -> bool:
        """Whether tasks may be trained with a technique."""
        if not self.techniques or self.techniques[0].startswith("-"):
            return f"-{technique}" not in self.techniques
        return technique in self.techniques

    def _check_tasks(self) -> None:
        if not (self.tasks or self.open):
            raise InvalidWorkload(f"workload {self.name!r} must have at least one task; it has none.")
        twice = sorted(name for name, count in Counter(task.name for task in self.tasks).items() if count > 1)
        if twice:
            raise InvalidWorkload(
                f"tasks of a workload must have names of their own; {', '.join(map(repr, twice[:5]))} "
                f"{'is' if len(twice) == 1 else 'are'} there more than once. Rename or drop the copies."
            )

    def _check_figures(self) -> None:
        names = {task.name for task in self.tasks}
        for what, figures in (("deadline", self.deadlines), ("weight", self.weights)):
            unknown = sorted(set(figures) - names)
            if unknown:
                raise InvalidWorkload(f"a {what} must be for a task of the workload; there is no {unknown[0]!r}.")
        past = [name for name, seconds in self.deadlines.items() if not seconds > 0]
        if past:
            raise InvalidWorkload(f"a deadline must lie ahead, got {self.deadlines[past[0]]} s for {past[0]!r}.")
        light = [name for name, weight in self.weights.items() if not 0 < weight < float("inf")]
        if light:
            raise InvalidWorkload(f"a weight must be above 0, got {self.weights[light[0]]} for {light[0]!r}.")
        if self.device_memory_bytes is not None and self.device_memory_bytes < 1:
            raise InvalidWorkload(f"device memory must be above 0 bytes, got {self.device_memory_bytes}.")


def parse_keep(given: Mapping[str, float]) -> Mapping[str, float]:
    """By how much each metric may become worse. Raises `InvalidWorkload` for what is no such amount, and for metrics of
    which it is not known whether more is better.

    >>> parse_keep({"accuracy": 0.002})
    {'accuracy': 0.002}
    """
    for metric, tolerance in given.items():
        if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not 0 < tolerance < float("inf"):
            raise InvalidWorkload(
                f"a tolerance (--keep, keep=) must be a number above 0, as in accuracy=0.002, got {tolerance!r} for "
                f"{metric!r}."
            )
        if suggest_goal(metric) is None:
            raise InvalidWorkload(
                f"a tolerance (--keep, keep=) must be for a metric whose name says whether more of it is better, such "
                f"as accuracy or loss; that of {metric!r} does not. Report it under such a name too."
            )
    return FrozenDict(given)


def parse_techniques(given: str | Iterable[str]) -> tuple[str, ...]:
    """Names of techniques that may be used, or, each with a minus, of those that may not, sorted.

    >>> parse_techniques("spill, resident"), parse_techniques({"-fuse"}), parse_techniques("")
    (('resident', 'spill'), ('-fuse',), ())
    """
    texts = [given] if isinstance(given, str) else list(given)
    if not all(isinstance(text, str) for text in texts):
        raise InvalidWorkload(f"techniques must be names, as in 'resident,spill' or ['-fuse'], got {given!r}.")
    names = sorted({name.strip() for text in texts for name in text.split(",") if name.strip()})
    if len({name.startswith("-") for name in names}) > 1:
        raise InvalidWorkload(
            f"techniques must either all be allowed, as in 'resident,spill', or all be forbidden, as in "
            f"'-fuse,-replicate', got {','.join(names)!r}."
        )
    return tuple(names)


def parse_device_memory(given: str | int | None) -> int | None:
    """The bytes that are meant by `device_memory`: a number of them, or text with a unit.

    >>> parse_device_memory("24 GiB") == 24 << 30
    True
    """
    try:
        return None if given is None else parse_bytes(given)
    except ValueError as error:
        raise InvalidWorkload(f"device memory: {error}") from None
