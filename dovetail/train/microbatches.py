"""`resident` with the rows of each batch taken in parts, one after another: less memory, and the same batch.

The loss of a batch is the mean over its rows, so its gradient is the mean of its parts' gradients, weighted by their
rows: that of the whole batch up to the order of sums, dropout included, which is drawn for the whole batch each time.
That the loss is such a mean, that nothing but dropout draws, and that no buffer changes with each part, is found out
before the first step, as `train/rowwise_session.py` does over ranks.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from dovetail.train.base import SessionMember
from dovetail.train.loop import is_due, metric_tensor, split_loss, to_device
from dovetail.train.randomness import generator_of
from dovetail.train.resident import ResidentSession
from dovetail.train.rows import Rows, RowwiseDropout, Seen, compare, count_rows, cut_in_two, take_rows
from dovetail.train.rowwise_session import refuse_rows
from dovetail.train.weights import WeightWrites
from dovetail.vocabulary import TechniqueRefused

Found = tuple[torch.Tensor, Mapping[str, Any]]


def refuse_parts(member: SessionMember) -> str | None:
    """Why the batches of this member cannot be taken in parts, as far as that shows without running it."""
    return refuse_rows([member], name="resident with microbatches")


class MicrobatchedSession(ResidentSession):
    """A plain training loop whose batches reach the device in `microbatches` parts; one with fewer rows, row by row."""

    def __init__(
        self,
        member: SessionMember,
        *,
        device: torch.device,
        threads: int,
        microbatches: int,
        recompute: bool = False,
        fp8: bool = False,
    ) -> None:
        if reason := refuse_parts(member):
            raise TechniqueRefused(reason)
        self._dropout = RowwiseDropout(member.training.model, generator=generator_of(device))
        super().__init__(member, device=device, threads=threads, recompute=recompute, fp8=fp8)
        self._microbatches, self._taken = microbatches, 0
        self._summed: frozenset[str] = frozenset()

    def close(self) -> None:
        """Remove hooks, and leave the model's dropouts as they were."""
        super().close()
        self._dropout.close()

    def _place_batches(self, batches: list[Any]) -> list[Any]:
        return batches  # each part goes to the device when its turn comes

    def _backward(self, batches: list[Any]) -> Iterator[Found]:
        """Each batch's loss and metrics, once the gradients of all its parts are there."""
        for number, batch in enumerate(batches):
            total = count_rows(batch)
            size = min(self._microbatches, total)
            parts = [Rows.of(part, size, total=total) for part in range(size)]
            self._taken += 1
            if is_due(self._taken):
                self._examine(batch, most=max(min(2, total), parts[0].count))
            found = []
            for rows in parts:
                # A part of the loss is freed before the next one is computed; its gradients alone stay.
                found.append(self._part(batch, number, rows, weight=rows.share / len(batches)))
                if self._half is not None and rows is not parts[-1]:
                    self._half.collect()
            yield self._combine(found, [rows.share for rows in parts])

    def _part(self, batch: Any, number: int, rows: Rows, *, weight: float) -> Found:
        try:
            loss, metrics = self._loss(batch, number, rows)
            (loss * weight).backward()
        except torch.OutOfMemoryError as error:
            # Whoever meets it knows that more parts do not help.
            error.is_smallest = rows.count == 1  # type: ignore[attr-defined]
            raise
        return loss.detach(), {name: metric_tensor(value, name=name) for name, value in metrics.items()}

    def _loss(self, batch: Any, number: int, rows: Rows) -> Found:
        assert self._training.loss is not None
        self._random.begin(self._step, number)  # for each part anew: each draws what the whole batch does
        self._dropout.rows = rows
        part = to_device(take_rows(batch, rows), self._device)
        with self._computing():
            found = self._training.loss(self._training.model, part)
        return split_loss(found)

    def _combine(self, found: list[Found], shares: list[float]) -> Found:
        """What the parts come to: losses and metrics are means over rows, counts are sums."""
        loss = torch.stack([each * share for (each, _), share in zip(found, shares, strict=True)]).sum()
        metrics = {}
        for name in found[-1][1]:
            weights = [1.0] * len(shares) if name in self._summed else shares
            values = [each[name].double() * weight for (_, each), weight in zip(found, weights, strict=True)]
            metrics[name] = torch.stack(values).sum()
        return loss, metrics

    def _examine(self, batch: Any, *, most: int) -> None:
        """Whether anything but dropout draws, whether forward changes buffers, whether the loss is a mean over rows;
        seen on as many rows as a part has, so that they fit."""
        sample = take_rows(batch, Rows(0, most, count_rows(batch), 1.0))
        buffers = dict(self._training.model.named_buffers())
        before = {name: buffer.clone() for name, buffer in buffers.items()}
        carried, weights = self._random.state(), WeightWrites(self._training.model)
        with self._random.watching():
            whole = self._look(sample, Rows(0, most, most, 1.0))
            drew = self._random.state() != carried or self._random.drew()
        changed = [name for name, old in before.items() if not torch.equal(old, buffers[name])]
        changed += weights.changed_names()
        if drew:
            raise TechniqueRefused(
                "nothing but dropout modules may draw random numbers in a loss whose rows are taken in parts; this "
                "one's does, and would draw otherwise for each part. Train whole batches, or use nn.Dropout."
            )
        if changed:
            raise TechniqueRefused(
                f"forward must change neither buffers nor weights where rows are taken in parts; {changed[0]!r} would "
                f"change once for each part. Train whole batches."
            )
        if most == 1:
            return
        parts = [(self._look(sample, rows), rows.share) for rows in cut_in_two(most)]
        found = compare(whole, parts, precision=self._training.precision)
        if not found.is_mean:
            raise TechniqueRefused(
                f"the loss of a batch must be the mean over its rows for these to be taken in parts; that of {most} "
                f"rows is {found.loss:.6g}, and the mean of its parts {found.mean:.6g}. Train whole batches."
            )
        if self._taken == 1:
            if found.neither:
                raise TechniqueRefused(
                    f"a metric must be a mean or a sum over rows for these to be taken in parts; "
                    f"{found.neither[0]!r} is neither. Train whole batches, or report it in evaluate."
                )
            self._summed = found.summed

    def _look(self, sample: Any, rows: Rows) -> Seen:
        with torch.no_grad():
            loss, metrics = self._loss(sample, 0, rows)
        return float(loss), {name: float(value) for name, value in metrics.items()}
