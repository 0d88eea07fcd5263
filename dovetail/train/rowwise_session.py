"""What techniques that split the rows of each batch over ranks share: whose rows are whose, and the mean over all.

Every rank draws every batch and takes its own rows of it, so batches and their order are those of one device. The
gradient of a loss that is a mean over rows is the mean of the ranks' gradients, weighted by their rows. That the loss
is such a mean, that nothing but dropout draws, and that no buffer depends on the whole batch, cannot be told from a
program; it is found out at the first step, and what does not hold is refused there.
"""

import abc
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from dovetail.feeds.cursor import digest
from dovetail.train.base import SessionMember, StepReport
from dovetail.train.compiled_programs import refuse_compiled_draws
from dovetail.train.loop import is_due, metric_tensor, split_loss, to_device
from dovetail.train.randomness import draws, generator_of
from dovetail.train.ranked_session import RankedSession
from dovetail.train.ranks import Ranks
from dovetail.train.rows import (
    DROPOUTS,
    Compared,
    Rows,
    RowwiseDropout,
    Seen,
    compare,
    count_rows,
    cut_in_two,
    take_rows,
)
from dovetail.train.undeclared import refuse_declared, refuse_scaling
from dovetail.train.weights import WeightWrites
from dovetail.vocabulary import TechniqueRefused

Found = tuple[torch.Tensor, Mapping[str, Any]]


def refuse_rows(members: Sequence[SessionMember], *, name: str) -> str | None:
    """Why a technique that splits rows cannot train these members, as far as that shows without running them."""
    if len(members) != 1:
        return f"{name} trains one task at a time, got {len(members)}"
    (member,) = members
    if member.training.step is not None:
        return f"{name} cannot run a step function of the program's own, for it does not know whose gradients are meant"
    if reason := refuse_declared(member.training, name=name) or refuse_scaling(member.training, name=name):
        return reason
    model = member.training.model
    if reason := refuse_compiled_draws(model, member.training.loss, name=name):
        return reason
    for path, module in model.named_modules():
        trains = module.training or not model.training  # a model fresh from a hub is put into training mode as a whole
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and trains:
            return f"the statistics of {path or 'the model'!r} ({type(module).__name__}) are those of a whole batch"
        if getattr(module, "max_norm", None) is not None:
            return f"forward must leave weights as they are; {path or 'the model'!r} changes its own (max_norm)"
        if type(module).__module__.startswith("torch.nn") and type(module) not in DROPOUTS and draws(module):
            return f"{path or 'the model'!r} ({type(module).__name__}) draws for a whole batch at once"
    return None


class WholeForward(nn.Module):
    """Anything that is done with a model as one forward of a module, so that what wraps it sees all of it, whatever
    parts of the model are called.

    >>> WholeForward(nn.Linear(2, 1))(lambda model, x: model(x).shape, torch.ones(3, 2))
    torch.Size([3, 1])
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, action: Callable[..., Any], *arguments: Any) -> Any:
        """Call `action(model, *arguments)`."""
        return action(self.model, *arguments)


class RowwiseSession(RankedSession):
    """One rank's part of a training whose batches are split by rows.

    The model is where the technique wants it when this is made. A technique says how to run something with the whole
    model (`_run`), and what holds while gradients of a microbatch come about (`_gathering`).
    """

    def __init__(self, member: SessionMember, *, device: torch.device, threads: int, ranks: Ranks) -> None:
        self._dropout = RowwiseDropout(member.training.model, generator=generator_of(device))
        super().__init__(member, device=device, threads=threads, ranks=ranks)
        self._parts: list[Rows] = []
        self._first: Any = None
        self._summed: frozenset[str] = frozenset()
        self._taken = 0

    def close(self) -> None:
        """Let the others go, and leave the model's dropouts as they were."""
        super().close()
        self._dropout.close()

    @abc.abstractmethod
    def _run(self, action: Callable[..., Any], *arguments: Any) -> Any:
        """Call `action(model, *arguments)`, on all ranks."""

    @abc.abstractmethod
    def _gathering(self, *, is_last: bool) -> contextlib.AbstractContextManager[Any]:
        """The context that forward and backward of a microbatch run in."""

    @abc.abstractmethod
    def _parameters(self) -> list[nn.Parameter]:
        """The trained parameters, as the optimizer has them."""

    def _place_batches(self, batches: list[Any]) -> list[Any]:
        self._first = batches[0]
        totals = [count_rows(batch) for batch in batches]
        self._parts = [Rows.of(self._ranks.rank, self._ranks.size, total=total) for total in totals]
        mine = zip(batches, self._parts, strict=True)
        return [to_device(take_rows(batch, rows), self._device) for batch, rows in mine]

    def _take_step(self, batches: list[Any]) -> StepReport:
        self._taken += 1
        if is_due(self._taken):
            self._examine(self._first)
            self._random.begin(self._step, 0)
            with _watching(self):
                loss, metrics = self._gradients(batches)
        else:
            loss, metrics = self._gradients(batches)
        report = self._mean(loss, metrics)
        parameters = self._parameters()
        self._clip_and_step(parameters)
        self._step_schedulers()
        for parameter in parameters:
            parameter.grad = None
        return report

    def _gradients(self, batches: list[Any]) -> Found:
        """This rank's part of the mean loss, and the metrics of the last microbatch; the gradients are there then."""
        losses: list[torch.Tensor] = []
        metrics: Mapping[str, Any] = {}
        for number, (batch, rows) in enumerate(zip(batches, self._parts, strict=True)):
            if number:
                self._random.begin(self._step, number)
            with self._gathering(is_last=number == len(batches) - 1):
                loss, metrics = self._loss(batch, rows)
                # Ranks' gradients are averaged as if all had as many rows.
                weight = rows.share * self._ranks.size / len(batches)
                (loss if weight == 1 else loss * weight).backward()
            losses.append(loss.detach() * (rows.share / len(batches)))
        return torch.stack(losses).sum(), metrics

    def _loss(self, batch: Any, rows: Rows) -> Found:
        assert self._training.loss is not None
        self._dropout.rows = rows
        with self._computing():
            found = self._run(self._training.loss, batch)
        return split_loss(found)

    def _mean(self, loss: torch.Tensor, metrics: Mapping[str, Any]) -> StepReport:
        """What all ranks found, together: losses and metrics are means over rows, counts are sums."""
        share = self._parts[-1].share
        weighted = [loss.detach().double()]
        for name in sorted(metrics):
            value = metric_tensor(metrics[name], name=name, device=self._device)
            weighted.append(value * (float(share > 0) if name in self._summed else share))
        total = self._ranks.sum(torch.stack(weighted))
        found = dict(zip(sorted(metrics), total[1:].unbind(), strict=True))
        return StepReport(step=self._step + 1, loss=total[0].to(loss.dtype), metrics={n: found[n] for n in metrics})

    def _examine(self, batch: Any) -> None:
        """Before the first step, and some later ones: whether all ranks have this batch, whether anything but dropout
        draws, and whether the loss is the mean over rows."""
        if self._ranks.differ(digest(batch)):
            raise TechniqueRefused(
                "a program must give the same batches in every process; this one does not. Seed what it draws."
            )
        # As many rows as a rank has in a step, so that they fit.
        total = count_rows(batch)
        most = max(min(2, total), total // self._ranks.size)
        sample = take_rows(batch, Rows(0, most, total, 1.0))
        with self._unchanged():
            before = self._random.state()
            with self._random.watching():
                whole = self._look(sample, Rows(0, most, most, 1.0))
                drew = self._random.state() != before or self._random.drew()
            if self._ranks.tell(drew):
                raise TechniqueRefused(
                    "nothing but dropout modules may draw random numbers in a loss whose rows are split over several "
                    "devices; this one's does, and would draw otherwise for each part. Use one device, or nn.Dropout."
                )
            if most > 1:
                parts = [(self._look(sample, rows), rows.share) for rows in cut_in_two(most)]
                self._judge(compare(whole, parts, precision=self._training.precision), most)

    def _judge(self, found: Compared, rows: int) -> None:
        """What rank 0 found holds for all: the others' rounding may differ."""
        is_mean, loss, mean, neither, summed = self._ranks.tell(
            [found.is_mean, found.loss, found.mean, list(found.neither), sorted(found.summed)]
        )
        if not is_mean:
            raise TechniqueRefused(
                f"the loss of a batch must be the mean over its rows for these to be split over several devices; "
                f"that of {rows} rows is {loss:.6g}, and the mean of its parts {mean:.6g}. Use one device."
            )
        if self._taken == 1:
            if neither:
                raise TechniqueRefused(
                    f"a metric must be a mean or a sum over rows for these to be split over several devices; "
                    f"{neither[0]!r} is neither. Use one device, or report it in evaluate."
                )
            self._summed = frozenset(summed)

    def _look(self, sample: Any, rows: Rows) -> Seen:
        self._random.begin(self._step, 0)
        with torch.no_grad():
            loss, metrics = self._loss(to_device(take_rows(sample, rows), self._device), rows)
        return float(loss), {name: float(value) for name, value in metrics.items()}

    @contextlib.contextmanager
    def _unchanged(self) -> Iterator[None]:
        """Afterwards the model's buffers are as they were."""
        buffers = list(self._training.model.buffers())
        before = [buffer.clone() for buffer in buffers]
        try:
            yield
        finally:
            for buffer, old in zip(buffers, before, strict=True):
                buffer.copy_(old)


@contextlib.contextmanager
def _watching(session: RowwiseSession) -> Iterator[None]:
    """Refuses buffers that come out unlike on the ranks, and weights that forward writes."""
    model, ranks = session._training.model, session._ranks
    weights = WeightWrites(model)
    versions = {name: buffer._version for name, buffer in model.named_buffers()}
    yield
    if changed := ranks.tell(weights.changed_names()):
        raise TechniqueRefused(f"forward must leave weights as they are; it writes {changed[0]!r}. Use one device.")
    for name, buffer in model.named_buffers():
        if ranks.tell(buffer._version != versions.get(name)) and ranks.differ(digest(buffer)):
            raise TechniqueRefused(
                f"buffers must not depend on which rows a device has; {name!r} does. Use one device for this model."
            )
