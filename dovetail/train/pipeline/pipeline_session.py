"""A session of the technique `pipeline`: one rank's stages, run by its list of a timetable's actions."""

import contextlib
import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from dovetail.feeds.cursor import digest
from dovetail.train.base import SessionMember, StepReport
from dovetail.train.cutting import Cut, capture_call, cut, equal, loss_given
from dovetail.train.cutting.recorder import untouched
from dovetail.train.pipeline.batches_ahead import AheadCursor
from dovetail.train.pipeline.course import Course
from dovetail.train.pipeline.deferred_gradients import Deferred
from dovetail.train.pipeline.gradient_exchange import GradientExchange
from dovetail.train.pipeline.live_stage import LiveStage, WeightVersions
from dovetail.train.pipeline.pipeline_layout import PipelineLayout
from dovetail.train.pipeline.pipeline_steps import SteppingSession
from dovetail.train.pipeline.rank_reports import ActionTimes, gather_reports
from dovetail.train.pipeline.row_division import RowDivision
from dovetail.train.pipeline.stage_states import BEFORE, StageStates
from dovetail.train.ranked_session import share_state
from dovetail.train.ranks import Ranks
from dovetail.train.state import TrainingState, capture, unpack
from dovetail.vocabulary import TechniqueRefused

_SMALL = ("feed", "random")
# Without a flush a step begins in the one before and ends in the next, as far as other ranks are concerned.
_STEPS_TIMED = {True: 3, False: 1}


class PipelineSession(SteppingSession):
    """One rank's part of a pipeline. Until the first batches are there, every rank has the whole model; then it is cut,
    and each keeps its stages. Evaluating and saving are rank 0's, with what the others send it."""

    def __init__(
        self, member: SessionMember, *, device: torch.device, threads: int, ranks: Ranks, layout: PipelineLayout
    ) -> None:
        if ranks.differ(layout.text()):
            raise TechniqueRefused("all ranks must be given the same stages, replicas, timetable and microbatches.")
        if ranks.differ(_checksum(member.training.model)):
            raise TechniqueRefused(
                "a program must build the same weights in every process; this one does not. Seed what it draws."
            )
        generator = (
            torch.default_generator if device.type == "cpu" else torch.cuda.default_generators[device.index or 0]
        )
        parts = layout.microbatches // member.training.accumulate
        self._division = RowDivision(member, parts, generator=generator)
        super().__init__(member, device=device, threads=threads, ranks=ranks)
        self._cursor = AheadCursor(member.training.batches, random=self._random)
        self._layout, self._course = layout, Course(layout, rank=ranks.rank)
        self._stages: dict[int, LiveStage] = {}
        self._versions: dict[int, WeightVersions] = {}
        self._parts: StageStates | None = None
        self._deferred: Deferred | None = None
        self._times = ActionTimes(device, steps=_STEPS_TIMED[layout.is_asynchronous])
        self._begin_anew()

    # What rank 0 is asked for

    def evaluate(self, member: int = 0) -> dict[str, float]:
        """The user's metrics, on rank 0, which gets the whole model for as long."""
        if self._training.evaluate is None:
            return {}
        with self._together("evaluate"), self._as_of_step():
            if self._parts is not None:
                self._parts.gather_model(self._device)
            try:
                return super().evaluate(member) if self._ranks.leads else {}
            finally:
                if self._parts is not None:
                    self._parts.free()

    def state(self, member: int = 0) -> TrainingState:
        """Everything, gathered on the host of rank 0."""
        with self._together("state"), self._as_of_step():
            feed, random = self._cursor.state(), self._cursor.random()
            if self._parts is None:
                return capture(self._training, step=self._step, feed=feed, random=random)
            older = [versions.older() for versions in self._versions.values()]
            extra = {
                f"{BEFORE}{age}": {name: leaf for each in weights for name, leaf in each.items()}
                for age, weights in enumerate(itertools.zip_longest(*older, fillvalue={}), start=1)
            }
            return self._parts.gather(step=self._step, feed=feed, random=random, extra=extra)

    def timings(self) -> dict[str, Any]:
        """Every rank's actions of the last step, with when they began and ended."""
        with self._together("timings"):
            found = gather_reports(self._times.to_json(), ranks=self._ranks, mail=self._aside)
        zero = min((start for rank in found for *_, start, _ in rank), default=0.0)
        ranks = tuple(tuple((*what, round(s - zero, 6), round(e - zero, 6)) for *what, s, e in rank) for rank in found)
        layout = self._layout
        return {"step": self._step, "timetable": layout.timetable, "microbatches": layout.microbatches, "ranks": ranks}

    def load(self, state: TrainingState, member: int = 0) -> None:
        """Go on from the state that rank 0 has; each rank keeps its stages of it."""
        with self._together("load"), self._as_of_step():
            self._begin_anew()
            small = {name: tensor for name, tensor in state.tensors.items() if name.split("/")[0] in _SMALL}
            shared = TrainingState(step=state.step, tensors=small, values=state.values)
            first = share_state(shared, self._ranks, keep=lambda name, tensor: tensor)
            feed, random = (unpack(first.values[name], first.tensors) for name in _SMALL)
            self._cursor.restore(feed)
            self._random.restore(random)
            self._step = first.step
            self._cut(self._cursor.see(0, self._training.accumulate))
            assert self._parts is not None
            self._exchange.begin_anew()
            self._restart(self._parts.load(state))

    def _restart(self, extra: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        self._course.restart(self._step)
        for stage, versions in self._versions.items():
            ages = itertools.takewhile(
                lambda each: each is not None, (extra.get(f"{BEFORE}{n}") for n in itertools.count(1))
            )
            older = [
                weights for weights in ages if weights is not None and versions.parameters.keys() <= weights.keys()
            ]
            versions.restart(self._step * self._layout.microbatches // self._course.round(stage), older)

    def close(self) -> None:
        """Let the others go, and leave the model's modules as they were."""
        super().close()
        self._division.close()
        if self._deferred is not None:
            self._deferred.close()
        for versions in self._versions.values():
            versions.put_back()

    @contextlib.contextmanager
    def _as_of_step(self) -> Iterator[None]:
        """Within, the model has its own parameters, and the buffers that it had after the last step."""
        for versions in self._versions.values():
            versions.put_back()
        now = [(buffers, name, buffers[name]) for buffers, name, _ in self._buffers]
        for buffers, name, then in self._buffers:
            buffers[name] = then
        try:
            yield
        finally:
            for buffers, name, tensor in now:
                buffers[name] = tensor

    def _take_step(self, batches: list[Any]) -> StepReport:
        self._cut(batches)
        return super()._take_step(batches)

    # Who has what

    def _cut(self, batches: list[Any]) -> None:
        """Cut the model by these first batches, and keep this rank's stages. Once."""
        if self._parts is not None:
            return
        training, layout, table = self._training, self._layout, self._course.table
        assert training.loss is not None
        if self._ranks.differ(digest(batches)):
            raise TechniqueRefused(
                "a program must give the same batches in every process; this one does not. Seed what it draws."
            )
        self._division.examine(training, batches[0], random=self._random, computing=self._computing)
        first, rows = self._division.divide(batches[0])[0]
        self._division.enter(rows)
        with self._computing():
            call = capture_call(training.loss, training.model, first)
            with untouched(training.model), torch.no_grad():  # so that every rank sees what a loss must not do
                loss_given(training.loss, training.model, first, training.model(*call.args, **call.kwargs))
            stages = layout.stages or equal(training.model, call, layout.depth)
            made = cut(training.model, call, stages=stages)
        self._refuse(made)
        trained = [{n: p for n, p in piece.named_parameters() if p.requires_grad} for piece in made.pieces]
        held: dict[str, list[int]] = {}
        for stage, piece in enumerate(made.pieces):
            for name, _ in itertools.chain(piece.named_parameters(), piece.named_buffers()):
                held.setdefault(name, []).extend(table.holders[stage])
        self._parts = StageStates(training, held, ranks=self._ranks)
        self._order = [name for name, parameter in training.model.named_parameters() if parameter.requires_grad]
        self._told = {name for name in self._order if held[name][0] == self._ranks.rank}
        self._make_stages(made, trained)
        self._parts.free()

    def _make_stages(self, made: Cut, trained: list[dict[str, nn.Parameter]]) -> None:
        table, rank, model = self._course.table, self._ranks.rank, self._training.model
        own = [stage for stage, holders in enumerate(table.holders) if rank in holders]
        for stage in own:
            made.pieces[stage].to(self._device)
        self._trained = {name: parameter for stage in own for name, parameter in trained[stage].items()}
        self._by_stage = {stage: trained[stage] for stage in own}
        self._exchange = GradientExchange(table.holders, trained, ranks=self._ranks, device=self._device)
        if self._layout.timetable == "zero_bubble":
            # What several stages share is not put off: an earlier stage's backward goes on with it.
            mine = {p for name, p in self._trained.items() if name not in self._exchange.shared}
            modules = model.named_modules()
            self._deferred = Deferred({name: m for name, m in modules if mine & set(m._parameters.values())})
        is_round = self._layout.timetable in ("stashing", "vertical_sync")
        for stage in own:
            self._stages[stage] = LiveStage(
                stage,
                made,
                training=self._training,
                random=self._random,
                division=self._division,
                computing=self._computing,
                # Where every round is updated by itself, stages differ in what a round is.
                divisor=1 if is_round else self._layout.microbatches,
                recompute=self._layout.recompute,
                deferred=self._deferred,
            )
            if self._layout.is_asynchronous:
                self._versions[stage] = WeightVersions(model, trained[stage], most=self._course.versions)

    def _refuse(self, made: Cut) -> None:
        shared = sorted(name for name in made.shared if name in dict(self._training.model.named_parameters()))
        if shared and self._layout.is_asynchronous:
            raise TechniqueRefused(
                f"weights that change under way must belong to one stage; {shared[0]!r} is used by stages "
                f"{list(made.shared[shared[0]])}. Untie it, or use '1f1b'."
            )
        for holders, piece in zip(self._course.table.holders, made.pieces, strict=True):
            names = {name.rpartition(".")[0] for name, _ in piece.named_buffers()}
            norms = [name for name in names if _keeps_statistics(self._training.model.get_submodule(name))]
            if len(holders) > 1 and norms:
                raise TechniqueRefused(
                    f"buffers of a replicated stage must not change, for each replica sees other microbatches; "
                    f"{min(norms)!r} keeps statistics. Give its stage one device."
                )


def _keeps_statistics(module: nn.Module) -> bool:
    is_norm = isinstance(module, nn.modules.batchnorm._NormBase)
    return is_norm and module.training and bool(module.track_running_stats)


def _checksum(model: nn.Module) -> str:
    tensors = itertools.chain(model.parameters(), model.buffers())
    return json.dumps([float(tensor.detach().sum(dtype=torch.float64)) for tensor in tensors])
