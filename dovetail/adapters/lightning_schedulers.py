"""Lightning's schedulers with their intervals, frequencies and monitors as schedulers of a `Training`."""

from collections.abc import Mapping, Sequence
from typing import Any

from dovetail.train import Scheduler
from dovetail.vocabulary import ProgramError


class CyclicCalls:
    """A scheduler that is asked to step more often than it is to: of each `period` calls, it steps at those in `due`.

    >>> class Counted:
    ...     steps = 0
    ...     def step(self): self.steps += 1
    >>> counted = Counted()
    >>> every_third = CyclicCalls(counted, period=3, due=[2])
    >>> for _ in range(7):
    ...     every_third.step()
    >>> counted.steps
    2
    """

    def __init__(self, scheduler: Any, *, period: int, due: Sequence[int]) -> None:
        self.scheduler, self._period, self._due = scheduler, period, frozenset(due)
        self._calls = 0

    def step(self, *metric: Any) -> None:
        """Step, with the metric where there is one, if this call is one of those."""
        place, self._calls = self._calls % self._period, self._calls + 1
        if place in self._due:
            self.scheduler.step(*metric)

    def state_dict(self) -> dict[str, Any]:
        """The count of calls, and where the scheduler stands."""
        return {"calls": self._calls, "scheduler": self.scheduler.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where this state was taken."""
        self._calls = state["calls"]
        self.scheduler.load_state_dict(state["scheduler"])


def convert_schedulers(
    configs: Sequence[Any], *, batches: int | None, accumulate: int, epochs_per_evaluation: int | None
) -> dict[str, Scheduler]:
    """Each scheduler of `configure_optimizers` (a `LRSchedulerConfig`), by name.

    `batches` are those of an epoch, where that is known; `epochs_per_evaluation` is None where evaluations are not at
    epochs' ends.
    """
    found = {}
    for number, config in enumerate(configs):
        if config.reduce_on_plateau:
            made = _convert_metric_schedule(config, epochs_per_evaluation)
        elif config.interval == "epoch":
            made = Scheduler(_every(config.scheduler, config.frequency), every="epoch")
        else:
            made = Scheduler(_convert_step_schedule(config, batches, accumulate))
        found[config.name or f"scheduler_{number}"] = made
    return found


def _every(scheduler: Any, count: int) -> Any:
    return scheduler if count == 1 else CyclicCalls(scheduler, period=count, due=[count - 1])


def _convert_step_schedule(config: Any, batches: int | None, accumulate: int) -> Any:
    """Lightning counts batches, anew in each epoch, and looks after a step whether their number is a multiple."""
    if config.frequency == 1:
        return config.scheduler
    if batches is None:
        raise ProgramError(
            f"a scheduler with interval 'step' and frequency {config.frequency} counts an epoch's batches, so they "
            f"must have a length; these have none. Use frequency 1."
        )
    after = [min(batches, (step + 1) * accumulate) for step in range(-(-batches // accumulate))]
    due = [step for step, count in enumerate(after) if count % config.frequency == 0]
    return CyclicCalls(config.scheduler, period=len(after), due=due)


def _convert_metric_schedule(config: Any, epochs_per_evaluation: int | None) -> Scheduler:
    """One that looks at a metric steps when evaluation reports it, which must be when Lightning would."""
    count = config.frequency
    if config.interval == "epoch" and epochs_per_evaluation is not None:
        if count % epochs_per_evaluation == 0 or count == 1:
            return Scheduler(_every(config.scheduler, max(1, count // epochs_per_evaluation)), metric=config.monitor)
    elif config.interval == "step" or count == 1:
        return Scheduler(config.scheduler, metric=config.monitor)
    raise ProgramError(
        f"a scheduler that monitors {config.monitor!r} steps when evaluation reports it; its frequency {count} in "
        f"{config.interval}s must be that of the evaluations, or a multiple. Change frequency, or the Trainer's "
        f"check_val_every_n_epoch."
    )
