"""One member's way through an order: resume, step, evaluate, save, report, end."""

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from dovetail.engines.attempt_clock import AttemptClock
from dovetail.engines.base import MemberOrder, Order
from dovetail.engines.best_value import BestValue
from dovetail.engines.gang_losses import GangLosses
from dovetail.engines.worker_context import WorkerContext, event_of, reporting_failure
from dovetail.store import folder_of
from dovetail.train import checkpoint as checkpoints
from dovetail.train.base import StepReport, Training, TrainingSession
from dovetail.train.loop import to_number
from dovetail.train.ranked_session import RankedSession
from dovetail.train.schedulers import steps_on_metrics
from dovetail.train.shard_evaluation import EvaluationVisit, ShardEvaluation
from dovetail.train.state import TrainingState, with_weights
from dovetail.vocabulary import CheckpointError, ProgramError, TrainingError
from dovetail.vocabulary.event_base import Event
from dovetail.vocabulary.events import (
    AttemptStopped,
    CheckpointDamaged,
    CheckpointSaved,
    PipelineTimed,
    RungReached,
    ShardEvaluated,
    StepsDone,
    TargetEvaluated,
    TaskFinished,
    Warned,
)
from dovetail.vocabulary.work import suggest_goal

FLUSH_SECONDS = 0.5
FLUSH_STEPS = 512
# At most so much of the time goes into regular saves: sixteen fused GPTs spent a tenth of it.
SAVING_SHARE = 0.02


class Trainer:
    """One member's way from its last checkpoint to `until_step`.

    What goes wrong with one member is its own: `begin` and `finish_step` then report it and say that it is done.
    """

    def __init__(
        self,
        order: Order,
        number: int,
        training: Training,
        session: TrainingSession,
        losses: GangLosses,
        around: WorkerContext,
    ) -> None:
        self.number, self.member, self.session = number, order.members[number], session
        self._order, self._training, self._losses, self._around = order, training, losses, around
        self._every = training.evaluate_every or training.steps_per_epoch()
        self._step = self._looked_step = self._saved_step = self._timed_step = 0
        self._metrics: dict[str, float] = {}
        stop, goal = self.member.task.stop, training.goal or suggest_goal(training.keep_best or "")
        self._patience = _make_best_value(stop.metric if stop.patience else None, stop.direction)
        self._best = _make_best_value(training.keep_best, goal)
        self._last: Mapping[str, Any] = {}
        self._stepwise: dict[str, float] = {}  # the metrics of the last step that was looked at
        self._logged: list[tuple[int, Mapping[str, Any]]] = []  # steps to report of that were not looked at
        self._points: list[list[Any]] = []  # to report next
        self._carried: list[list[Any]] = []  # reported, but not known to be in the store
        self._flushed_at = self._saved_at = time.monotonic()
        self._save_seconds = 0.0  # what the last one took
        self._flushed_step = 0
        self._evaluated_step = 0  # the last after which it was evaluated
        self._warned = False
        self._clock = AttemptClock()
        # For how long it had waited for data when it began to take steps, and when that was last told.
        self._waited_before = self._waited_told = 0.0

    @property
    def step(self) -> int:
        """The last step taken."""
        return self._step

    def begin(self) -> bool:
        """Go on from the last checkpoint; whether there is a step to take."""
        with reporting_failure(self.member, self._around):
            self._resume()
            if isinstance(self._training.evaluate, EvaluationVisit):
                self._visit(self._training.evaluate)
            elif self._is_unevaluated():
                self._evaluate()
                self._keep_best()
            return self._goes_on()
        return False

    def finish_step(self, report: StepReport) -> bool:
        """Take in a step whose loss is among those of the gang; whether there is another to take."""
        self._step, self._last = report.step, report.metrics
        if self._step % self._training.log_every == 0 or self._step == self.member.until_step:
            self._logged.append((self._step, report.metrics))
        # A step of a fused gang may take a millisecond for all its members: most have nothing more to do after it.
        evaluates, flushes, saves = self._evaluation_due(), self._flush_due(), self._save_due()
        ends = self._step >= self.member.until_step
        if not (evaluates or flushes or saves or ends):
            return True
        with reporting_failure(self.member, self._around):
            if evaluates:
                self._evaluate()
                self._keep_best()
            if flushes:
                self._flush(wait=False)
            if saves and self._saved_step < self._step < self.member.until_step:
                self._save(required=False)
            return self._goes_on()
        return False

    def stop(self, reason: str) -> None:
        """Save and end early."""
        with reporting_failure(self.member, self._around):
            data_share = self._data_share()
            if self._step > self._saved_step:
                self._save(required=True)
            seconds = self._clock_seconds() if self.member.task.stop.has_target else {}
            self._report(AttemptStopped, step=self._step, reason=reason, data_share=data_share, seconds=seconds)

    def _goes_on(self) -> bool:
        if self._step < self.member.until_step and not self._is_done():
            return True
        self._end()
        return False

    def _is_done(self) -> bool:
        """Whether it ends before its last step."""
        return self.member.task.stop.reached(self._metrics) or self._is_out_of_patience()

    def _is_out_of_patience(self) -> bool:
        patience = self.member.task.stop.patience
        return patience is not None and self._patience is not None and self._patience.waited >= patience

    def _resume(self) -> None:
        if self._patience is not None and self._every is None:
            raise ProgramError(
                "patience counts regular evaluations, so a Training must say how often it is evaluated; its batches "
                "have no length. Give Training(evaluate_every=...)."
            )
        self._around.doing("loading")
        checkpoints.discard(folder_of(self.member.directory), up_to_attempt=self.member.anew_since_attempt)
        state, damages = checkpoints.recover(
            folder_of(self.member.directory),
            at_most=self.member.until_step,
            known=self._around.nearby(self.member.directory),
        )
        for damage in damages:
            self._report(CheckpointDamaged, path=str(damage.path), reason=damage.reason)
        if state is not None:
            self.session.load(state, self.number)
            self._step = self._looked_step = self._saved_step = self._flushed_step = state.step
            self._metrics = dict(state.values["progress"]["metrics"])
            self._evaluated_step = state.values["progress"].get("evaluated_step", 0)
            # Points that may not have reached the store before the last attempt ended.
            self._points = [list(point) for point in state.values["progress"]["points"]]
            self._patience, self._best = (
                each and each.resume(state.values["progress"].get(name))
                for name, each in (("patience", self._patience), ("best", self._best))
            )
        elif self.member.task.begins_with:
            self._begin_warm()
        self._saved_at = self._flushed_at = time.monotonic()
        self._clock.begin()
        self._waited_before = self._waited_told = self.session.waited_seconds(self.number)
        self._flush()

    def _begin_warm(self) -> None:
        """Step 0 with the weights of the task that this one was cloned from."""
        other = checkpoints.read_begin(folder_of(self.member.directory), digest=self.member.task.begins_with)
        try:
            self.session.load(with_weights(self.session.state(self.number), other), self.number)
        except CheckpointError as error:
            raise CheckpointError(
                f"task {self.member.task.name!r} must build the model whose weights it begins with, those of step "
                f"{other.step}: {error} Clone with --fresh where parameters change the model."
            ) from error

    def _visit(self, visit: EvaluationVisit) -> None:
        """Evaluate on one shard; on the last of them all, that is an evaluation as any other, and counts once."""
        if self._step < self.member.until_step:
            raise CheckpointError(
                f"an evaluation after step {self.member.until_step} must find what was saved then; the newest sound "
                f"checkpoint is of step {self._step}. Run the task anew."
            )
        if visit.is_last and self._evaluated_step < self._step:
            self._saved_step = self._step - 1  # what follows from it is to be saved
            self._evaluate()
            self._keep_best()
            return
        with self._clock.phase("evaluate"):
            self._around.doing(f"evaluating after step {self._step}")
            self.session.evaluate(self.number)

    def _is_unevaluated(self) -> bool:
        """Whether visits to the shards of an evaluation were to come at this step, and now no more: all are here."""
        is_left = isinstance(self._training.evaluate, ShardEvaluation) and self._evaluated_step < self._step
        return is_left and self._evaluation_due()

    def _evaluation_due(self) -> bool:
        if self.member.visits and isinstance(self._training.evaluate, ShardEvaluation):
            return False  # visits to its shards come after this one
        # A visit's end is nowhere that training alone would be evaluated.
        is_end = self._step == self.member.until_step and (self.member.final or not self.member.visits)
        return is_end or self._is_regular()

    def _is_regular(self) -> bool:
        """Whether this step is evaluated wherever training ends. Only such evaluations decide how it goes on: a task
        that is given more steps later must go on as if it had had them from the beginning."""
        return self._every is not None and self._step % self._every == 0

    def _evaluate(self) -> None:
        self._collect()  # what a device is still at are steps, and no part of the evaluation
        began = time.monotonic()
        with self._clock.phase("evaluate"):
            self._around.doing(f"evaluating after step {self._step}")
            self._take_metrics()
        self._evaluated_step = self._step
        if self.member.task.stop.has_target:
            self._report_target(time.monotonic() - began)

    def _report_target(self, evaluation_seconds: float) -> None:
        metric = self.member.task.stop.metric
        assert metric is not None
        self._report(
            TargetEvaluated,
            step=self._step,
            value=self._metrics[metric],
            seconds=self._clock_seconds(),
            evaluation_seconds=round(evaluation_seconds, 6),
        )

    def _clock_seconds(self) -> dict[str, float]:
        return {name: round(seconds, 6) for name, seconds in self._clock.seconds(read=self._waited_seconds()).items()}

    def _take_metrics(self) -> None:
        self._metrics = self.session.evaluate(self.number)
        check_names(self._metrics)
        metric = self.member.task.stop.metric
        if metric is not None and metric not in self._metrics:
            if metric not in self._stepwise:
                raise ProgramError(
                    f"evaluation must report the target metric {metric!r}; it reports {sorted(self._metrics)}. "
                    f"Add it to what evaluate gives, or change the target."
                )
            self._metrics[metric] = self._stepwise[metric]
        self._points += [[n, self._step, v] for n, v in self._metrics.items() if not n.startswith("train/")]
        if self._is_regular():
            if self._patience is not None:
                self._patience = self._patience.add(self._metrics[self._patience.metric], step=self._step)
            if steps_on_metrics(self._training):
                self.session.observe({**self._stepwise, **self._metrics}, self.number)

    def _keep_best(self) -> None:
        """Save where the metric that Training.keep_best names has never been better. What could not be saved is not
        taken for the best, so that the next value that is better than what is kept will be."""
        if self._best is None:
            return
        found, before = {**self._stepwise, **self._metrics}, self._best
        if before.metric not in found:
            raise ProgramError(
                f"evaluation must report the metric {before.metric!r} that Training.keep_best names; it reports "
                f"{sorted(self._metrics)}. Add it to what evaluate gives, or name another."
            )
        self._best = before.add(found[before.metric], step=self._step)
        if self._best.step == self._step:
            self._save(required=False)
            if self._saved_step < self._step:
                self._best = before

    def _collect(self, *, wait: bool = True) -> None:
        """Bring losses over from the device, look at them, and turn the logged ones into points. Unless `wait`, those
        of steps that the device is still at stay there."""
        values = self._losses.take(self.number, wait=wait)
        if not values:
            return
        first, self._looked_step = self._looked_step + 1, self._looked_step + len(values)
        logged = [(step, metrics) for step, metrics in self._logged if step <= self._looked_step]
        self._logged = self._logged[len(logged) :]
        with self._losses.beside(wait=wait):
            self._look(first, values, logged)
        if wait:
            self._stepwise = _stepwise(values[-1], self._last)

    def _look(self, first: int, values: list[float], logged: list[tuple[int, Mapping[str, Any]]]) -> None:
        sound = next((offset for offset, value in enumerate(values) if not math.isfinite(value)), len(values))
        for step, metrics in logged:
            if step - first < sound:
                found = _stepwise(values[step - first], metrics)
                self._points += [[name, step, value] for name, value in found.items()]
        if sound < len(values):
            at = first + sound
            # How it came there is what one wants to see.
            self._report(StepsDone, step=at - 1, points=tuple(self._points))
            raise TrainingError(
                f"the loss must be a finite number; it was {values[sound]} at step {at}, the first such step. "
                f"Lower the learning rate, clip gradients (clip_norm), or look at that batch. "
                f"{self._kept_note()}"
            )

    def _kept_note(self) -> str:
        return (
            f"The last checkpoint, at step {self._saved_step}, is kept."
            if self._saved_step
            else "Nothing was saved yet."
        )

    def _data_share(self) -> float:
        """The part of its steps' time, so far, in which it waited for data. An accelerator may have computed meanwhile
        what it was given before, so that less is lost there."""
        stepped = self._clock.stepping_seconds()
        return round(min(1.0, self._waited_seconds() / stepped), 3) if stepped > 0 else 0.0

    def _waited_seconds(self) -> float:
        """For how long its steps have waited for their batches, in this attempt."""
        return self.session.waited_seconds(self.number) - self._waited_before

    def _flush(self, *, wait: bool = True) -> None:
        self._collect(wait=wait)
        waited = self.session.waited_seconds(self.number)
        self._around.waited(waited - self._waited_told)
        self._waited_told = waited
        if not self._warned and (shortfall := self.session.shortfall(self.number)):
            self._warned = True
            self._report(Warned, message=f"{self._order.technique} runs plainly: {shortfall}")
        now = time.monotonic()
        rate = (self._step - self._flushed_step) / max(now - self._flushed_at, 1e-9)
        self._report(StepsDone, step=self._step, steps_per_second=rate, points=tuple(self._points))
        self._carried += self._points
        self._points = []
        self._flushed_at, self._flushed_step = now, self._step

    def _flush_due(self) -> bool:
        return self._step - self._looked_step >= FLUSH_STEPS or time.monotonic() - self._flushed_at > FLUSH_SECONDS

    def _save_due(self) -> bool:
        every = self._order.save_every_steps
        if every is not None:
            return self._step % every == 0
        # All members wait for each other's saves.
        least_seconds = len(self._order.members) * self._save_seconds / SAVING_SHARE
        return time.monotonic() - self._saved_at > max(self._order.save_every_seconds, least_seconds)

    def _save(self, *, required: bool) -> None:
        self._collect()
        with self._clock.phase("save"):
            self._write_checkpoint(required=required)

    def _write_checkpoint(self, *, required: bool) -> None:
        began = time.monotonic()
        write = self._prepare_write()
        try:
            saved = write()
        except CheckpointError as error:
            if required:
                raise
            # Training is worth more than this one save: say so and try again later.
            self._report(Warned, message=str(error))
            self._saved_at = time.monotonic()
            return
        self._saved_step, self._saved_at = self._step, time.monotonic()
        self._save_seconds = self._saved_at - began
        self._around.report(saved)

    def _prepare_write(self, *, copied: bool = False) -> Callable[[], CheckpointSaved]:
        """What writes a checkpoint of now and gives its event; with `copied`, from copies in the host's memory, so that
        it may be called whenever it suits."""
        self._around.doing(f"saving step {self._step}")
        self._flush()
        self._report_timings()
        acknowledged = self._around.acknowledged_step(self.member.task.identity)
        self._carried = [point for point in self._carried if point[1] > acknowledged]
        state = self.session.state(self.number)
        counted = {"patience": self._patience, "best": self._best}
        progress = {"metrics": self._metrics, "points": self._carried, "evaluated_step": self._evaluated_step}
        progress |= {name: dataclasses.asdict(each) for name, each in counted.items() if each is not None}
        state = dataclasses.replace(state, values={**state.values, "progress": progress})
        if copied:
            tensors = {name: tensor.detach().to("cpu", copy=True) for name, tensor in state.tensors.items()}
            state = dataclasses.replace(state, tensors=tensors)
        best_step = self._best.step if self._best is not None and self._best.step else None
        retention = checkpoints.Retention(
            count=self._order.keep_count, bytes=self._order.keep_bytes, best_step=best_step
        )
        return functools.partial(_write, self.member, state, retention)

    def _report_timings(self) -> None:
        # When steps have doubled: always of a recent step, and few in the longest training.
        if isinstance(self.session, RankedSession) and self._step >= max(1, 2 * self._timed_step):
            self._timed_step = self._step
            if found := self.session.timings():
                self._report(PipelineTimed, **found)

    def _end(self) -> None:
        data_share, reason = self._data_share(), self._early_reason()
        is_over = self.member.final or bool(reason)
        if self.member.visits and self._step > self._saved_step:
            self._leave(data_share, reason, is_over=is_over)
            return
        if self._step > self._saved_step or self._step == 0:
            self._save(required=True)
        self._flush()
        for event in self._endings(data_share, reason, is_over=is_over):
            self._around.report(event)

    def _leave(self, data_share: float, reason: str, *, is_over: bool) -> None:
        """End a visit: who comes next need not wait until what was learned is saved."""
        self._collect()
        write, endings = self._prepare_write(copied=True), list(self._endings(data_share, reason, is_over=is_over))
        self._around.save_beside(functools.partial(_write_and_end, self.member, self._around, write, endings))

    def _endings(self, data_share: float, reason: str, *, is_over: bool) -> Iterator[Event]:
        """What is said last, once all that follows from it is saved."""
        visit = self._training.evaluate
        if isinstance(visit, EvaluationVisit):
            sums = visit.found[visit.shard]
            yield event_of(ShardEvaluated, self.member, step=self._step, shard=visit.shard, sums=sums)
        if self.member.visits and not is_over:
            why = "its shard is evaluated" if self.member.evaluates else "its shard is read"
            yield event_of(AttemptStopped, self.member, step=self._step, reason=why, data_share=data_share)
            return
        yield event_of(
            TaskFinished if is_over else RungReached,
            self.member,
            step=self._step,
            reason=reason,
            metrics=self._metrics,
            data_share=data_share,
        )

    def _early_reason(self) -> str:
        """What ended it before its last step, or at it; empty where nothing but that step did."""
        stop, best = self.member.task.stop, self._patience
        if stop.reached(self._metrics):
            return f"reached {stop}"
        if best is None or not self._is_out_of_patience():
            return ""
        than = f"{best.value:g} at step {best.step}" if best.value is not None else "NaN"
        return f"{best.metric} was not better than {than} for {best.waited} evaluations"

    def _report(self, kind: type[Event], **fields: Any) -> None:
        self._around.report(event_of(kind, self.member, **fields))


def _write(member: MemberOrder, state: TrainingState, retention: checkpoints.Retention) -> CheckpointSaved:
    path, size = checkpoints.write(
        folder_of(member.directory), state, task=member.task.name, attempt=member.attempt, retention=retention
    )
    return event_of(CheckpointSaved, member, step=state.step, path=str(path), bytes=size, best_step=retention.best_step)


def _write_and_end(
    member: MemberOrder, around: WorkerContext, write: Callable[[], CheckpointSaved], endings: Iterable[Event]
) -> None:
    with reporting_failure(member, around):
        for event in (write(), *endings):
            around.report(event)


def _make_best_value(metric: str | None, goal: str | None) -> BestValue | None:
    return BestValue(metric=metric, goal=goal) if metric is not None and goal is not None else None


def _stepwise(loss: float, metrics: Mapping[str, Any]) -> dict[str, float]:
    check_names(metrics)
    # Named apart from what evaluation reports, which may well have a loss of its own.
    return {
        "train/loss": loss,
        **{f"train/{name}": to_number(value, name=name, of="a step") for name, value in metrics.items()},
    }


def check_names(metrics: Mapping[Any, Any]) -> None:
    """Refuse names of metrics that cannot be stored.

    >>> check_names({"accuracy": 1.0})
    """
    for name in metrics:
        if not isinstance(name, str) or name.encode(errors="replace").decode() != name:
            raise ProgramError(f"a metric's name must be text, and all of it UTF-8, got {name!r}.")
