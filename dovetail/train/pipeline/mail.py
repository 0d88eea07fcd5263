"""What ranks of a pipeline send one another: dicts of tensors, without waiting until somebody takes them.

Sender and receiver agree on shapes by what they saw before: for every new kind of message the sender first says what is
in it; after that tensors travel alone, and the receiver gives them a place ahead of time. What crosses keeps its
strides, because kernels round by them. Messages from one rank to another arrive in the order they are sent in, which
`planning/pipeline/timetables/consistency.py` has seen to be the order they are awaited in.
"""

import collections
import datetime
import json
from collections.abc import Hashable, Mapping
from typing import Any

import torch
from torch import distributed

from dovetail.train.ranks import Ranks
from dovetail.vocabulary import TechniqueRefused

_SHORT_BYTES = 1024
_SEQUENCE_BITS, _SESSION_BITS = 22, 9

#: What a message holds: names, shapes, strides, dtypes, and whether gradients are wanted.
Outline = list[list[Any]]
Values = dict[str, torch.Tensor]


class Mail:
    """One rank's messages. `kind` is whatever tells messages of unlike contents apart, the same on both sides."""

    def __init__(self, ranks: Ranks, *, device: torch.device, name: str = "pipeline") -> None:
        self._rank, self._device = ranks.rank, device
        # One channel in each direction: with NCCL those who send to each other at once would wait for ever on one.
        self._channels = ranks.channel(f"{name} up"), ranks.channel(f"{name} down")
        self.patience: datetime.timedelta | None = None
        """How long a message is awaited; without it, as long as the ranks wait for one another."""
        self._session = ranks.new_session() % (1 << _SESSION_BITS)
        self._numbers: collections.Counter[tuple[int, int]] = collections.Counter()
        self._sent: dict[Hashable, Outline] = {}
        self._known: dict[Hashable, Outline] = {}
        self._going: dict[tuple[int, str], collections.deque[tuple[int, Any, torch.Tensor]]] = collections.defaultdict(
            collections.deque
        )
        self._coming: dict[Hashable, tuple[Outline, list[Any], Values]] = {}

    def send(
        self,
        to: int,
        values: Mapping[str, torch.Tensor],
        *,
        kind: Hashable,
        wanted: Mapping[str, bool],
        mark: tuple[str, int] = ("", 0),
    ) -> None:
        """Begin to send these. Raises `TechniqueRefused` if messages of this kind had another outline before. `mark` is
        what `forget` knows them by: what they are, and their number."""
        outline = [
            [n, list(v.shape), list(v.stride()), str(v.dtype).removeprefix("torch."), wanted.get(n, False)]
            for n, v in values.items()
        ]
        before = self._sent.get((to, kind))
        if before is None:
            self._sent[to, kind] = outline
            self.write(to, json.dumps(outline))
        elif [_without_length(entry) for entry in before] != [_without_length(entry) for entry in outline]:
            raise TechniqueRefused(
                f"what crosses from stage to stage must have the same shapes for microbatches of the same shapes, so "
                f"that memory can be given ahead; it was {_show(before)} and is {_show(outline)} now. Use one device."
            )
        for (_, shape, stride, *_rest), value in zip(self._sent[to, kind], values.values(), strict=True):
            if value.numel():
                self.post(to, _flat(value.detach(), shape, stride), mark=mark)

    def expect(self, source: int, *, kind: Hashable, name: Hashable) -> bool:
        """Give the message of this name a place to arrive at, if it is known what is in it; whether it is."""
        if (source, kind) not in self._known:
            return False
        if name not in self._coming:
            self._coming[name] = self._place(source, self._known[source, kind])
        return True

    def receive(self, source: int, *, kind: Hashable, name: Hashable) -> tuple[Values, dict[str, bool]]:
        """Receive the message of this name; gives its values, and which of them want a gradient back."""
        if (source, kind) not in self._known:
            self._known[source, kind] = json.loads(self.read(source))
        self.expect(source, kind=kind, name=name)
        outline, works, values = self._coming.pop(name)
        for work in works:
            work.wait(self.patience) if self.patience else work.wait()
        return values, {entry[0]: entry[4] for entry in outline}

    def write(self, to: int, text: str) -> None:
        """Send a text to a rank."""
        data = text.encode()
        short = torch.zeros(_SHORT_BYTES, dtype=torch.uint8)
        head = len(data).to_bytes(8, "little") + data[: _SHORT_BYTES - 8]
        short[: len(head)] = torch.frombuffer(bytearray(head), dtype=torch.uint8)
        self.post(to, short.to(self._device))
        if rest := data[_SHORT_BYTES - 8 :]:
            self.post(to, torch.frombuffer(bytearray(rest), dtype=torch.uint8).to(self._device))

    def read(self, source: int) -> str:
        """Receive the text that a rank sends."""
        short = torch.empty(_SHORT_BYTES, dtype=torch.uint8, device=self._device)
        self._await(source, short).wait()
        found = short.cpu().numpy().tobytes()
        length, data = int.from_bytes(found[:8], "little"), found[8:]
        if length > len(data):
            rest = torch.empty(length - len(data), dtype=torch.uint8, device=self._device)
            self._await(source, rest).wait()
            data += rest.cpu().numpy().tobytes()
        return data[:length].decode()

    def post(self, to: int, flat: torch.Tensor, *, mark: tuple[str, int] = ("", 0)) -> None:
        """Begin to send a flat tensor whose size the other knows."""
        data, (what, number) = flat.view(torch.uint8), mark
        work = distributed.isend(data, to, group=self._channels[to < self._rank], tag=self._tag(self._rank, to))
        self._going[to, what].append((number, work, data))

    def take(self, source: int, flat: torch.Tensor) -> None:
        """Fill a flat tensor with what a rank posts."""
        self._await(source, flat).wait()

    def settle(self) -> None:
        """Wait until everything sent has been taken, and let go of it."""
        for going in self._going.values():
            while going:
                going.popleft()[1].wait()

    def forget(self, to: int, what: str, upto: int) -> None:
        """Let go of what was sent to a rank under such a mark, up to this number: the rank is known to have it."""
        going = self._going[to, what]
        while going and going[0][0] <= upto:
            going.popleft()[1].wait()

    def _await(self, source: int, flat: torch.Tensor) -> Any:
        channel = self._channels[self._rank < source]
        return distributed.irecv(flat.view(torch.uint8), source, group=channel, tag=self._tag(source, self._rank))

    def _place(self, source: int, outline: Outline) -> tuple[Outline, list[Any], Values]:
        works, values = [], {}
        for name, shape, stride, dtype, _ in outline:
            count = torch.Size(shape).numel()
            flat = torch.empty(count, dtype=getattr(torch, dtype), device=self._device)
            if count:
                works.append(self._await(source, flat))
            values[name] = flat.as_strided(shape, stride) if _is_dense(shape, stride) else flat.view(shape)
        return outline, works, values

    def _tag(self, source: int, to: int) -> int:
        number = self._numbers[source, to]
        self._numbers[source, to] += 1
        return self._session << _SEQUENCE_BITS | number % (1 << _SEQUENCE_BITS)


def _flat(value: torch.Tensor, shape: list[int], stride: list[int]) -> torch.Tensor:
    """The bytes of a tensor as the receiver expects them: in their order in memory where it has no gaps."""
    if list(value.stride()) == stride and _is_dense(shape, stride):
        return value.as_strided((value.numel(),), (1,))
    if _is_dense(shape, stride):
        laid = torch.empty(0, dtype=value.dtype, device=value.device).new_empty_strided(shape, stride)
        return laid.copy_(value).as_strided((value.numel(),), (1,))
    return value.contiguous().view(-1)


def _is_dense(shape: list[int], stride: list[int]) -> bool:
    """Whether strides leave neither gaps nor overlaps."""
    expected = 1
    for step, size in sorted(zip(stride, shape, strict=True)):
        if size == 1:
            continue
        if step != expected:
            return False
        expected *= size
    return True


def _without_length(entry: list[Any]) -> list[Any]:
    name, shape, _, dtype, wanted = entry
    return [name, shape, dtype, wanted]


def _show(outline: Outline) -> str:
    return ", ".join(f"{name} {dtype}{shape}" for name, shape, _, dtype, _ in outline)
