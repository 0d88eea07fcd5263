"""What users build (`Training`) and what a technique promises (`Technique`, `TrainingSession`).

Knows torch, and nothing of processes, stores or schedules.
"""

import abc
import dataclasses
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from dovetail.feeds.shards import Shards
from dovetail.planning.pipeline.timetables import ASYNCHRONOUS
from dovetail.train.numeric import refusal
from dovetail.train.schedulers import Scheduler, Stateful, check_schedulers, schedulers_of
from dovetail.train.shard_evaluation import ShardEvaluation
from dovetail.train.state import TrainingState
from dovetail.vocabulary import APPROXIMATIONS, FrozenDict, ProgramError, TechniqueRefused
from dovetail.vocabulary.work import suggest_goal

Batch = Any
PRECISIONS = ("fp32", "bf16", "fp16", "bf16-pure")
Loss = torch.Tensor | tuple[torch.Tensor, Mapping[str, Any]]


@dataclasses.dataclass(kw_only=True)
class Training:
    """What a program builds: one model, its data, and how a step is taken. Plain PyTorch inside.

    - `loss(model, batch)` gives the scalar to minimise, or that and a dict of metrics to record.
    - `batches` is iterated once an epoch. A `dt.feed` resumes by its position, and whatever has `state_dict` and
      `load_state_dict` through them; others are iterated anew and skipped to their position. Of a `dt.Shards` each
      piece is read where it lies, and the model goes there.
    - `shares` names the batches of all tasks that read the very same ones in the same order, whatever their models:
      they may then be read once for all of these tasks (technique `together`).
    - A step takes `accumulate` batches and averages their gradients.
    - `schedule` steps once after each optimizer step; `dt.Scheduler(scheduler, every="epoch")` at each epoch's end,
      `dt.Scheduler(ReduceLROnPlateau(...), metric="loss")` with a metric, at each regular evaluation. Several go by
      name into `schedules`.
    - `evaluate(model)` gives metrics; it is called every `evaluate_every` steps (None: at each epoch's end
      where batches have a length) and at the end, in evaluation mode and without gradients. A `dt.ShardEvaluation` is
      made where its shards lie.
    - `keep_best` names the metric whose best checkpoint, at any evaluation, is kept beside the last, and is the one
      that `dovetail export` and `result[task].model()` give; `goal` says "max" or "min" where its name does not.
    - `held_out` are batches of inputs and labels that no step and no evaluation sees: `dovetail serve --cascade`
      chooses and calibrates with them.
    - `clip_norm` clips the global norm of the gradients.
    - `precision="bf16"` computes under autocast, and so does `"fp16"`, which scales the loss so that small gradients
      count (torch's `GradScaler`: a step whose gradients overflow is left out). `"bf16-pure"` computes in bf16
      throughout, floating inputs included, on bf16 copies of the weights that the optimizer keeps in fp32.
    - `timetable` names a pipeline's timetable whose weights change under way ("stashing", "vertical_sync" or "2bw"):
      planners may then train this program so, which is another mathematics. Without it they never do.
    - `step(training, batch)` replaces the whole step for what does not fit the mould (several optimizers,
      adversarial training); it gives a dict of metrics, `loss` among them. Only `resident` runs it, and
      `optimizer` may then be a dict of optimizers, and it steps those of `schedules` itself that are no
      `dt.Scheduler`.
    - `callbacks` are called with the training and the number of the step after each step, in the process that trains,
      without gradients. Only `resident` and `together` call them.
    - `allow` names approximations (docs/numeric.md): what may be computed otherwise than it says, where that is faster
      or nothing else fits. "state-8bit" keeps the moments of Adam, AdamW and SGD in 8 bits, "state-bf16" in bf16,
      "weights-bf16" weights that are read in bf16 without a copy in fp32;
      "attention-masks" lets `fuse` draw the masks of attention with dropout by itself on accelerators, whose kernels
      draw in a way of their own; the distribution is the same. On CPUs the masks are the very same, and nothing need
      be allowed.
    - What the step, the loss or callbacks change is declared, so that checkpoints have it: `state`, by name, anything
      with `state_dict` and `load_state_dict` (averaged weights, a gradient scaler, counters). Where they change
      variables that are not declared, the training is refused.

    The model may be on the CPU: Dovetail moves it, its optimizer's state and each batch to the device.

    >>> model = nn.Linear(2, 1)
    >>> Training(model=model, batches=[torch.ones(4, 2)], loss=lambda model, batch: model(batch).mean(),
    ...          optimizer=torch.optim.SGD(model.parameters(), lr=0.1)).accumulate
    1
    """

    model: nn.Module
    batches: Iterable[Batch]
    optimizer: torch.optim.Optimizer | Mapping[str, torch.optim.Optimizer]
    loss: Callable[[nn.Module, Batch], Loss] | None = None
    schedule: torch.optim.lr_scheduler.LRScheduler | Scheduler | None = None
    evaluate: Callable[[nn.Module], Mapping[str, float]] | None = None
    evaluate_every: int | None = None
    keep_best: str | None = None
    goal: str | None = None
    accumulate: int = 1
    clip_norm: float | None = None
    precision: str = "fp32"
    log_every: int = 10
    shares: str = ""
    timetable: str | None = None
    step: Callable[["Training", Batch], Mapping[str, Any]] | None = None
    schedules: Mapping[str, Stateful] = FrozenDict()
    state: Mapping[str, Stateful] = FrozenDict()
    callbacks: Sequence[Callable[["Training", int], Any]] = ()
    allow: Collection[str] = frozenset()
    held_out: Iterable[Batch] | None = None

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Raise `ProgramError` where this cannot be trained as it says; once more after fields were changed."""
        if not isinstance(self.model, nn.Module):
            raise ProgramError(f"Training.model must be a torch.nn.Module, got {type(self.model).__name__}.")
        if (self.loss is None) == (self.step is None):
            raise ProgramError("a Training must have either a loss or a step function of its own, one of the two.")
        if isinstance(self.optimizer, Mapping) and self.step is None:
            raise ProgramError("several optimizers must go with a step function; give Training(step=...).")
        if not hasattr(self.batches, "__iter__"):
            raise ProgramError(f"Training.batches must be iterable, got {type(self.batches).__name__}.")
        if self.precision not in PRECISIONS:
            raise ProgramError(f"Training.precision must be one of {list(PRECISIONS)}, got {self.precision!r}.")
        if self.precision == "bf16-pure" and self.step is not None:
            raise ProgramError(
                "precision 'bf16-pure' must go with a loss, not a step function, whose optimizer steps "
                "would miss the fp32 weights. Use precision 'bf16'."
            )
        if self.precision == "fp16" and self.step is not None:
            raise ProgramError(
                "precision 'fp16' must go with a loss, which is scaled, not with a step function. Use autocast and a "
                "torch.amp.GradScaler there, and give it as Training(state={'scaler': ...})."
            )
        if not all(map(callable, self.callbacks)):
            raise ProgramError("Training.callbacks must be functions of the training and the step's number.")
        for name in ("schedules", "state"):
            self._check_stateful(name, getattr(self, name))
        self._check_parts()
        if self.timetable is not None and self.timetable not in ASYNCHRONOUS:
            raise ProgramError(f"Training.timetable must be one of {list(ASYNCHRONOUS)}, got {self.timetable!r}.")
        check_schedulers(self)
        if isinstance(self.evaluate, ShardEvaluation) and not isinstance(self.batches, Shards):
            raise ProgramError(
                f"an evaluation over shards must go with batches that are dt.Shards, for it is their visits that it "
                f"stands between; got batches of type {type(self.batches).__name__}. Give evaluate a plain function."
            )
        if isinstance(self.batches, Shards) and isinstance(self.accumulate, int) and self.accumulate > 0:
            self.batches.facts(accumulate=self.accumulate)
        self._check_allowed()
        if self.goal not in (None, "max", "min"):
            raise ProgramError(f"Training.goal must be 'max' or 'min', got {self.goal!r}.")
        if self.keep_best is not None and (self.goal or suggest_goal(self.keep_best)) is None:
            raise ProgramError(
                f"Training.keep_best must know whether more of {self.keep_best!r} is better; its name does not say. "
                f"Give goal='max' or goal='min'."
            )
        for name in ("accumulate", "log_every", "evaluate_every"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ProgramError(f"Training.{name} must be a whole number of at least 1, got {value!r}.")

    def _check_allowed(self) -> None:
        if isinstance(self.allow, str) or set(self.allow) - set(APPROXIMATIONS):
            raise ProgramError(
                f"Training.allow must be a set of names among {list(APPROXIMATIONS)}, got {self.allow!r}."
            )
        for name in sorted(self.allow):
            if reason := refusal(self, name):
                raise ProgramError(f"Training.allow names what this training cannot have: {reason}.")

    def _check_parts(self) -> None:
        """Refuse by name what would fail inside a step, where only the batch could be blamed."""
        optimizers = self.optimizers().values()
        if isinstance(self.schedule, Mapping):
            raise ProgramError(
                "Training.schedule must be one scheduler; several by name go into Training(schedules={...})."
            )
        schedulers = [each.scheduler for each in schedulers_of(self).values()]
        for thing in (self.batches, *schedulers, *optimizers):
            if type(thing).__module__.partition(".")[0] == "accelerate":
                raise ProgramError(
                    f"a Training must be given plain PyTorch; its {type(thing).__name__} comes from accelerate, which "
                    f"places and splits batches by itself, as Dovetail does. Leave accelerator.prepare(...) out."
                )
        for optimizer in optimizers if self.step is None else ():
            needs = inspect.signature(type(optimizer).step).parameters.get("closure")
            if needs is not None and needs.default is inspect.Parameter.empty:
                raise ProgramError(
                    f"an optimizer must step without a closure where Dovetail takes the step; "
                    f"{type(optimizer).__name__} needs one. Give Training(step=...) a step function that calls "
                    f"optimizer.step(closure)."
                )

    def _check_stateful(self, name: str, given: Any) -> None:
        if not isinstance(given, Mapping):
            raise ProgramError(f"Training.{name} must be a dict by name, got {type(given).__name__}.")
        for key, value in given.items():
            if not (hasattr(value, "state_dict") and hasattr(value, "load_state_dict")):
                raise ProgramError(
                    f"Training.{name}[{key!r}] must have state_dict() and load_state_dict(); a "
                    f"{type(value).__name__} has not. Hold it in a class of your own that has both."
                )

    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """The optimizers by name; a single one is called ''."""
        return dict(self.optimizer) if isinstance(self.optimizer, Mapping) else {"": self.optimizer}

    def steps_per_epoch(self) -> int | None:
        """How many steps one pass over the batches takes, where batches have a length."""
        try:
            return len(self.batches) // self.accumulate  # type: ignore[arg-type]
        except TypeError:
            return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class SessionMember:
    """One task of the gang that a session trains: its training and the seed of all its random numbers."""

    training: Training
    seed: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepReport:
    """What one optimizer step gave. Values stay on the device until somebody asks for them."""

    step: int
    loss: torch.Tensor
    metrics: Mapping[str, Any]


Members = Sequence[SessionMember]
"""The tasks of a gang, in the order of the option's families."""
Knobs = Mapping[str, Any]
"""What an option asks of its technique, by name."""
NO_KNOBS: Knobs = FrozenDict()


class TrainingSession(abc.ABC):
    """Live training of one gang on its devices. Called from one thread of one worker, never at once.

    After any method raises, only `close` may be called.
    """

    last_losses: torch.Tensor | None = None
    """The losses of the last step, of its live members in their order, where the session has them in one tensor."""

    @abc.abstractmethod
    def advance(self, live: Sequence[int] = (0,)) -> list[StepReport]:
        """Take one optimizer step with each member in `live`; the others are left as they are.

        Raises `TrainingError` for a batch that the model rejects and `StopIteration`-free `ProgramError`
        for batches that run out; whatever the user's own code raises passes through.
        """

    @abc.abstractmethod
    def evaluate(self, member: int = 0) -> dict[str, float]:
        """The user's metrics for this member now; empty without an evaluation function. Changes nothing."""

    @property
    def warmup_steps(self) -> int:
        """After how many steps the others take as long as they will; where it says more than none, trials wait."""
        return 0

    def waited_seconds(self, member: int = 0) -> float:
        """For how long this member's steps have waited for their batches so far; zero where that is not known."""
        return 0.0

    def shortfall(self, member: int = 0) -> str:
        """Why this member's steps are not taken as the technique promises, though they are as exact; empty where they
        are."""
        return ""

    def observe(self, metrics: Mapping[str, float], member: int = 0) -> None:
        """Step the schedulers of this member that step with a metric. Called with what an evaluation gave, after each
        regular one, and only where there are such schedulers."""
        raise TechniqueRefused(f"{type(self).__name__} has no schedulers that step with a metric.")

    @abc.abstractmethod
    def state(self, member: int = 0) -> TrainingState:
        """Everything that decides how this member goes on, in canonical form."""

    @abc.abstractmethod
    def load(self, state: TrainingState, member: int = 0) -> None:
        """Go on from `state`, whichever technique wrote it."""

    @abc.abstractmethod
    def close(self) -> None:
        """Give back devices and threads. May be called twice."""


Each = TypeVar("Each", bound=TrainingSession)


class GangSession(TrainingSession, Generic[Each]):
    """A session of several tasks, each with a session of its own in `_members`, which is asked what it alone knows.
    Subclasses say what a step of several is."""

    _members: list[Each]

    def waited_seconds(self, member: int = 0) -> float:
        """For how long one member's steps have waited for their batches."""
        return self._members[member].waited_seconds()

    def shortfall(self, member: int = 0) -> str:
        """Why one member's steps are not taken as promised."""
        return self._members[member].shortfall()

    def evaluate(self, member: int = 0) -> dict[str, float]:
        """Evaluate one member; gives its metrics."""
        return self._members[member].evaluate()

    def observe(self, metrics: Mapping[str, float], member: int = 0) -> None:
        """Step one member's schedulers that step with a metric."""
        self._members[member].observe(metrics)

    def state(self, member: int = 0) -> TrainingState:
        """Everything that decides how one member goes on."""
        return self._members[member].state()

    def load(self, state: TrainingState, member: int = 0) -> None:
        """Let one member go on from `state`."""
        self._members[member].load(state)

    def close(self) -> None:
        """Close the sessions of all members."""
        for session in self._members:
            session.close()


class Technique(abc.ABC):
    """A way to run gangs on devices. Stateless; one object serves every session."""

    name: str
    exactness: str
    """How exact it is, in words that its conformance test holds it to."""
    ranked: bool = False
    """Whether it takes one process for each device (`train/ranks.py`), or one for all of them."""

    @abc.abstractmethod
    def refuse(self, members: Members) -> str | None:
        """Why this technique cannot train these members exactly, or None if it can."""

    def check(self, members: Members) -> None:
        """Raise `TechniqueRefused` where `refuse` gives a reason."""
        if reason := self.refuse(members):
            raise TechniqueRefused(reason)

    @abc.abstractmethod
    def open(self, members: Members, *, device: torch.device, threads: int, knobs: Knobs = NO_KNOBS) -> TrainingSession:
        """A session at step 0 on this device, with the knobs of the option that was chosen. Raises `TechniqueRefused`
        where `refuse` gives a reason, or where memory that the knobs allow is too small, with the numbers."""
