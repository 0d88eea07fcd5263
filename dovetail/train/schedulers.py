"""When schedulers step: after each step, at the end of each epoch, or on a metric that evaluation reports.

A scheduler changes an optimizer's rates; how is torch's business. What it counts is in the checkpoint, so that it goes
on where it stopped. Knows no sessions: those of every technique call `step_schedulers` after each of their steps.
"""

import dataclasses
import functools
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from dovetail.vocabulary import ProgramError

if TYPE_CHECKING:
    from dovetail.train.base import Training


class Stateful(Protocol):
    """What can be saved and go on: a scheduler, a module, a gradient scaler, or a class of the user's own."""

    def state_dict(self) -> Any:
        """What decides how it goes on: tensors, numbers, text, lists and dicts."""

    def load_state_dict(self, state_dict: Any, /) -> Any:
        """Go on from where this state was taken."""


@dataclasses.dataclass(frozen=True)
class Scheduler:
    """A scheduler of torch's, or one with its methods, and when it steps: after each step, at each epoch's end
    (`every="epoch"`), or with a metric, each time that evaluation, at its regular steps, reports it.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1)
    >>> decay = Scheduler(torch.optim.lr_scheduler.StepLR(optimizer, 30), every="epoch")
    >>> plateau = Scheduler(torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer), metric="loss")
    >>> decay.every, plateau.metric
    ('epoch', 'loss')
    """

    scheduler: Any
    _: dataclasses.KW_ONLY
    every: str = "step"
    metric: str | None = None

    def __post_init__(self) -> None:
        if not all(hasattr(self.scheduler, name) for name in ("step", "state_dict", "load_state_dict")):
            raise ProgramError(
                f"a scheduler must have step(), state_dict() and load_state_dict(); {type(self.scheduler).__name__} "
                f"has not all of them."
            )
        if self.every not in ("step", "epoch"):
            raise ProgramError(f"a scheduler must step every 'step' or every 'epoch', got every={self.every!r}.")
        if self.metric is not None and self.every != "step":
            raise ProgramError("a scheduler with a metric steps when evaluation reports it; leave out every=.")
        kind: Any = type(self.scheduler)
        if self.metric is None and _needs_metric(kind):
            name = kind.__name__
            raise ProgramError(
                f"{name} must be told a metric when it steps. Give it as dt.Scheduler({name}(...), metric='loss'), "
                f"with a metric that evaluate reports."
            )

    def state_dict(self) -> Any:
        """Where the scheduler stands."""
        return self.scheduler.state_dict()

    def load_state_dict(self, state_dict: Any) -> None:
        """Let the scheduler go on from there."""
        self.scheduler.load_state_dict(state_dict)


@functools.cache  # asked at each step
def _needs_metric(kind: Any) -> bool:
    parameters = list(inspect.signature(kind.step).parameters.values())[1:]
    return any(p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)


def schedulers_of(training: "Training") -> dict[str, Scheduler]:
    """The schedulers that Dovetail steps, each under the name by which messages call it. Those that a step function of
    the program's own steps, because they are given without a word about when, are not among them."""
    found = {f"schedules[{name!r}]": each for name, each in training.schedules.items()}
    if training.step is not None:
        found = {name: each for name, each in found.items() if isinstance(each, Scheduler)}
    if training.schedule is not None:
        found["schedule"] = training.schedule
    return {name: each if isinstance(each, Scheduler) else Scheduler(each) for name, each in found.items()}


def check_schedulers(training: "Training") -> None:
    """Raise `ProgramError` where a scheduler could never step when it is to."""
    for name, each in schedulers_of(training).items():
        if each.every == "epoch" and not training.steps_per_epoch():
            raise ProgramError(
                f"Training.{name} steps at each epoch's end, so batches must have a length of at least one step; these "
                f"have none. Give them __len__, or leave out every='epoch' and count steps."
            )
        if each.metric is not None and not (training.evaluate_every or training.steps_per_epoch()):
            raise ProgramError(
                f"Training.{name} steps with {each.metric!r} whenever evaluation reports it; say how often that is "
                f"with Training(evaluate_every=...), for batches have no length."
            )


def step_schedulers(training: "Training", *, step: int) -> None:
    """Step what is due after this step of the optimizer."""
    if training.schedule is None and not training.schedules:
        return
    epoch = training.steps_per_epoch()
    for each in schedulers_of(training).values():
        if each.metric is None and (each.every == "step" or (epoch and step % epoch == 0)):
            each.scheduler.step()


def steps_on_metrics(training: "Training") -> bool:
    """Whether any scheduler is to be told what evaluation reports."""
    return any(each.metric is not None for each in schedulers_of(training).values())


def observe_metrics(training: "Training", metrics: Mapping[str, float]) -> None:
    """Step the schedulers that step with a metric. Raises `ProgramError` where theirs is not among these."""
    for name, each in schedulers_of(training).items():
        if each.metric is None:
            continue
        if each.metric not in metrics:
            raise ProgramError(
                f"evaluation must report the metric {each.metric!r} with which Training.{name} steps; it reports "
                f"{sorted(metrics)}. Add it to what evaluate gives, or name another."
            )
        each.scheduler.step(metrics[each.metric])


def only_after_steps(training: "Training") -> str | None:
    """Why a technique that takes steps in parts, each with an update of its own, cannot have these schedulers."""
    for name, each in schedulers_of(training).items():
        if each.metric is not None or each.every == "epoch":
            when = f"with the metric {each.metric!r}" if each.metric is not None else "at each epoch's end"
            return f"weights that change under way belong to no one step, and Training.{name} steps {when}"
    return None
