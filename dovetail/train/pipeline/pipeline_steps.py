"""The steps of a pipeline's session: a rank's actions one after another, their messages, gradients and updates.

Knows timetables, stages and ranks; knows nothing of cutting a model, nor of checkpoints.
"""

import datetime
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from dovetail.planning.pipeline.timetables import Action
from dovetail.train.base import StepReport
from dovetail.train.loop import OPTIMIZER_STEPS, describe, to_device
from dovetail.train.pipeline.batches_ahead import AheadCursor
from dovetail.train.pipeline.course import Course
from dovetail.train.pipeline.gradient_exchange import GradientExchange, clip
from dovetail.train.pipeline.live_stage import LiveStage, Microbatch, Values, WeightVersions
from dovetail.train.pipeline.mail import Mail
from dovetail.train.pipeline.pipeline_layout import PipelineLayout
from dovetail.train.pipeline.rank_reports import ActionTimes, Found, collect_losses, tell
from dovetail.train.pipeline.row_division import RowDivision
from dovetail.train.ranked_session import RankedSession

# So many messages are given a place before they are awaited.
_AHEAD = 2
# A message is awaited for so many times the longest step so far, and so many seconds at least.
_PATIENCE, _LEAST_PATIENCE = 20, 30.0


class SteppingSession(RankedSession):
    """A session that runs the actions of its stages. Whoever makes it gives it these."""

    _cursor: AheadCursor
    _layout: PipelineLayout
    _course: Course
    _division: RowDivision
    _exchange: GradientExchange
    _stages: dict[int, LiveStage]
    _versions: dict[int, WeightVersions]
    _trained: dict[str, nn.Parameter]  # what this rank trains
    _by_stage: dict[int, dict[str, nn.Parameter]]
    _order: list[str]  # all that is trained, in the model's order
    _told: set[str]  # those of them whose norms this rank tells
    _times: ActionTimes
    _longest_seconds = 0.0

    def _begin_anew(self) -> None:
        """Nothing is under way, and nothing that was sent before is taken for what is sent from here on."""
        self._mail = Mail(self._ranks, device=self._device)
        self._aside = Mail(self._ranks, device=torch.device("cpu"))
        self._microbatches: dict[int, Microbatch] = {}
        self._local: dict[tuple[str, int, int], tuple[Values, Mapping[str, bool]]] = {}
        self._sums: dict[str, torch.Tensor] = {}
        self._early: dict[tuple[int, int], dict[str, torch.Tensor]] = {}
        # Places, and what was there after the last step, of buffers that have changed since.
        self._buffers: list[tuple[dict[str, Any], str, torch.Tensor]] = []
        for stage in self._stages.values():
            stage.drop()

    def _place_batches(self, batches: list[Any]) -> list[Any]:
        return batches  # moved to the device as microbatches, some of them ahead of their step

    def _take_step(self, batches: list[Any]) -> StepReport:
        self._arrive(self._step, batches)
        ahead = -(-self._course.microbatches_ahead // self._layout.microbatches)
        for step in range(ahead):
            self._arrive(self._step + 1 + step, self._cursor.see(step, self._training.accumulate))
        start = time.monotonic()
        self._times.begin_step()
        self._run(self._course.step(self._step))
        # From here on a rank is waited for by what steps take: one that hangs is alive, so that engines do not notice.
        self._longest_seconds = max(self._longest_seconds, time.monotonic() - start)
        self._mail.patience = datetime.timedelta(seconds=max(_LEAST_PATIENCE, _PATIENCE * self._longest_seconds))
        self._do("the update")
        if not self._layout.is_asynchronous:
            self._times.begin()
            self._update()
            self._times.end(Action(operation="update", stage=min(self._stages), microbatch=0))
            self._exchange.settle()
            self._mail.settle()
        return self._make_report()

    def _do(self, what: str) -> None:
        # In the first step a model may be compiled, by other processes than this one.
        self.doing(f"{what} in step {self._step + 1}", computing=self._longest_seconds > 0)

    def _arrive(self, step: int, batches: list[Any]) -> None:
        first = step * self._layout.microbatches if self._layout.is_asynchronous else 0
        if first in self._microbatches:
            return
        parts = [(place, *part) for place, batch in enumerate(batches) for part in self._division.divide(batch)]
        for number, (place, part, rows) in enumerate(parts, start=first):
            self._microbatches[number] = Microbatch(
                number=number,
                step=step,
                place=place,
                batch=to_device(part, self._device),
                rows=rows,
                signature=describe(part),
            )

    def _run(self, actions: list[Action]) -> None:
        """Do what the timetable says, one action after another, while messages come and go."""
        incoming = [each for action in actions if (each := self._incoming_message(action)) is not None]
        posted = 0
        received = 0
        is_known = True
        self._buffers = []
        telling = self._last_telling_action(actions)
        if telling < 0:
            self._tell()
        for place, action in enumerate(actions):
            while is_known and posted < min(received + _AHEAD, len(incoming)):
                source, kind, name = incoming[posted]
                is_known = self._mail.expect(source, kind=kind, name=name)
                posted += is_known
            self._do(str(action))
            if self._incoming_message(action) is not None:
                received += 1
                posted, is_known = max(posted, received), True
            self._times.begin()
            self._act(action)
            self._times.end(action)
            if place == telling:
                self._tell()

    def _last_telling_action(self, actions: list[Action]) -> int:
        """After which of these actions this rank has the losses of the step. Without a flush it goes on with the next
        step in this one, and rank 0 must not wait for that too: then all would wait for all in every step."""
        if not self._layout.is_asynchronous:
            return len(actions) - 1
        last, numbers = self._course.table.depth - 1, self._numbers()
        found = (
            place
            for place, action in enumerate(actions)
            if action.operation == "forward" and action.stage == last and action.microbatch in numbers
        )
        return max(found, default=-1)

    def _act(self, action: Action) -> None:
        if action.operation == "forward":
            self._forward(action)
        elif action.operation in ("backward", "inputs"):
            self._go_back(action)
        elif action.operation == "weights":
            self._stages[action.stage].derive_weights(action.microbatch)
            self._collect(action)
        else:
            self._update_stage(action)

    def _incoming_message(self, action: Action) -> tuple[int, Any, Any] | None:
        """From whom an action awaits a message, of which kind and name."""
        stage, operation = action.stage, action.operation
        if operation == "forward" and stage > 0:
            before, of = stage - 1, "forward"
        elif operation in ("backward", "inputs") and stage + 1 < self._course.table.depth:
            before, of = stage + 1, "backward"
        else:
            return None
        source = self._course.table.rank(before, action.microbatch)
        if source == self._ranks.rank:
            return None
        return source, (of, stage, self._microbatches[action.microbatch].signature), (of, stage, action.microbatch)

    def _receive(self, action: Action, of: str) -> tuple[Values, Mapping[str, bool]]:
        incoming = self._incoming_message(action)
        if incoming is None:
            return self._local.pop((of, action.stage, action.microbatch), ({}, {}))
        source, kind, name = incoming
        self._do(f"waiting for rank {source} before {action}")
        found = self._mail.receive(source, kind=kind, name=name)
        self._times.begin()  # not while it waited
        self._do(str(action))
        # Who sends a gradient has taken what it comes of; who sends an activation has only so many under way.
        if of == "backward":
            self._mail.forget(source, f"forward {action.stage}", action.microbatch)
        else:
            over = action.microbatch - self._course.under_way(action.stage - 1)
            self._mail.forget(source, f"backward {action.stage}", over)
        return found

    def _send(self, action: Action, of: str, to: int, values: Values, wanted: Mapping[str, bool]) -> None:
        rank = self._course.table.rank(to, action.microbatch)
        if rank == self._ranks.rank:
            self._local[of, to, action.microbatch] = {name: v.detach() for name, v in values.items()}, wanted
            return
        kind = (of, to, self._microbatches[action.microbatch].signature)
        mark = f"{of} {action.stage}", action.microbatch
        self._mail.send(rank, values, kind=kind, wanted=wanted, mark=mark)

    def _forward(self, action: Action) -> None:
        stage = self._stages[action.stage]
        microbatch = self._microbatches[action.microbatch]
        if self._layout.is_asynchronous:
            self._versions[action.stage].use(action.version)
            if microbatch.step > self._step and not self._buffers:
                self._buffers = [(held, name, held[name].clone()) for held, name in stage.buffers]
        values, wanted = self._receive(action, "forward")
        outputs, wanted = stage.forward(microbatch, values, wanted)
        if not stage.is_last:
            self._send(action, "forward", action.stage + 1, outputs, wanted)

    def _go_back(self, action: Action) -> None:
        stage = self._stages[action.stage]
        if self._layout.is_asynchronous:
            self._versions[action.stage].use(action.version)
        gradients, _ = self._receive(action, "backward")
        derive = stage.inputs if action.operation == "inputs" else stage.backward
        found = derive(action.microbatch, gradients, self._exchange.take_from_later(action.stage, action.microbatch))
        if not stage.is_first:
            self._send(action, "backward", action.stage - 1, found, {})
        if self._exchange.shared:
            tied = {n: p.grad for n, p in self._by_stage[action.stage].items() if n in self._exchange.shared}
            there = {name: gradient for name, gradient in tied.items() if gradient is not None}
            self._exchange.send_to_earlier(action.stage, action.microbatch, there)
        self._collect(action)

    # Gradients and updates

    def _collect(self, action: Action) -> None:
        """What a backward gave: left where it is summed up by itself, else put where it is."""
        if self._layout.is_asynchronous:
            found = self._versions[action.stage].take_gradients(action.version)
            for name in found.keys() - self._exchange.names:
                if name in self._sums:
                    self._sums[name] += found[name]  # in its place: new memory for every microbatch takes longer
                else:
                    self._sums[name] = found[name]
        else:
            found = self._early.pop((action.stage, action.microbatch), {})
            for name in self._exchange.names & self._by_stage[action.stage].keys():
                gradient, self._trained[name].grad = self._trained[name].grad, None
                if gradient is not None:
                    found[name] = found[name] + gradient if name in found else gradient
            if action.operation == "inputs":  # those of weights that nothing put off
                self._early[action.stage, action.microbatch] = found
                return
        self._exchange.hand_in(action.stage, action.microbatch, found)

    def _update(self) -> None:
        """The optimizer's step after a flush, on all ranks."""
        training = self._training
        assert isinstance(training.optimizer, torch.optim.Optimizer)
        for name, total in self._exchange.total(range(self._layout.microbatches)).items():
            self._trained[name].grad = total
        if training.clip_norm is not None:
            clip(self._trained, order=self._order, counted=self._told, most=training.clip_norm, ranks=self._ranks)
        self._step_optimizer()

    def _update_stage(self, action: Action) -> None:
        """The optimizer's step of one stage while others go on: clipped by its own norm."""
        size = self._course.round(action.stage)
        microbatches = range(action.microbatch * size, (action.microbatch + 1) * size)
        sums, self._sums = self._sums | self._exchange.total(microbatches), {}
        versions = self._versions[action.stage]
        is_mean = self._layout.timetable != "2bw" and size > 1
        for name, total in sums.items():
            versions.parameters[name].grad = total / size if is_mean else total
        if self._training.clip_norm is not None:
            nn.utils.clip_grad_norm_(list(versions.parameters.values()), self._training.clip_norm)
        versions.update(self._step_optimizer)

    def _step_optimizer(self) -> None:
        training = self._training
        assert isinstance(training.optimizer, torch.optim.Optimizer)
        self._demand = OPTIMIZER_STEPS
        training.optimizer.step()
        self._step_schedulers()
        for parameter in self._trained.values():
            parameter.grad = None

    def _numbers(self) -> range:
        """The numbers of this step's microbatches; without a flush they are counted on from step to step."""
        first = self._step * self._layout.microbatches if self._layout.is_asynchronous else 0
        return range(first, first + self._layout.microbatches)

    def _losses(self) -> Found:
        """What this rank found of the step's microbatches, once."""
        stage = self._stages.get(self._course.table.depth - 1)
        return {n: stage.losses.pop(n) for n in self._numbers() if n in stage.losses} if stage else {}

    def _tell(self) -> None:
        if not self._ranks.leads and (mine := self._losses()):
            tell(mine, mail=self._aside)

    def _make_report(self) -> StepReport:
        """What came of the step, on rank 0; the others have told it what they know, and have nothing of use here."""
        metrics: Mapping[str, Any]
        losses, metrics = [torch.tensor(float("nan"))], {}
        if self._ranks.leads:
            last, numbers = self._course.table.depth - 1, self._numbers()
            sources = [self._course.table.rank(last, number) for number in numbers]
            losses, metrics = collect_losses(self._losses(), sources, first=numbers[0], mail=self._aside)
        for number in self._numbers():
            del self._microbatches[number]
        return self._report(losses, metrics)
