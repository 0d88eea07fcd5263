"""Ranks: the processes, one a device, that train one gang together.

Every rank runs the same code: it builds the same program, joins the others, and opens the same session. Rank 0 leads:
it alone is asked for steps, evaluations and states, reports and saves, and before each of these that takes all ranks
it tells the others, who follow (`RankedSession`). So no rank ever decides by itself what comes next. Knows torch's
process groups (gloo on CPU, NCCL between CUDA devices); knows nothing of how ranks are started.
"""

import dataclasses
import datetime
import json
from typing import Any, Self

import torch
from torch import distributed

from dovetail.train.base import Technique
from dovetail.train.meeting_store import SCHEME, MeetingStore, notice_lost_links, refuse_unreachable
from dovetail.vocabulary import TechniqueRefused

# How long a rank waits to be told what comes next: rank 0 may be evaluating or saving.
_LEADER_PATIENCE = datetime.timedelta(days=7)


class Ranks:
    """One process's place among the ranks of an order.

    `rendezvous` is where they meet, as torch understands it (`file:///...`, `tcp://...`), or for those on several nodes
    a `meeting:` (see `meeting_store`), where it says of which `node` it is and at which `address` others reach that. It
    must be a fresh one for every attempt: a group that is restarted on the store of one that was killed fails more
    often than not. `patience_seconds` is how long it waits for another inside a step. Engines notice dead and silent
    ranks long before; this is for ranks that are alive and at odds.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ranks = Ranks(rank=0, size=1, rendezvous=f"file://{folder}/meeting")
    ...     ranks.join(torch.device("cpu"))
    ...     ranks.tell({"step": 1})
    ...     ranks.leave()
    {'step': 1}
    """

    def __init__(
        self,
        *,
        rank: int,
        size: int,
        rendezvous: str,
        patience_seconds: float = 600.0,
        node: str = "",
        address: str = "127.0.0.1",
    ) -> None:
        self.rank, self.size, self.rendezvous = rank, size, rendezvous
        self._node, self._address = node, address
        self._patience = datetime.timedelta(seconds=patience_seconds)
        self._telling: Any = None
        self._store: MeetingStore | None = None
        self._told: tuple[Any, torch.Tensor] | None = None  # what others may not have heard yet, and where it lies
        self._channels: dict[str, Any] = {}
        self._sessions = 0

    @property
    def leads(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def join(self, device: torch.device) -> None:
        """Meet the others, all of whom must come. `device` is this rank's own. Raises `TechniqueRefused` where one is
        on a node that cannot be reached."""
        where: dict[str, Any] = {"init_method": self.rendezvous}
        if self.rendezvous.startswith(SCHEME):
            # Kept, for torch holds no more of it than what calls back into Python.
            store = self._store = MeetingStore(self.rendezvous, timeout=self._patience)
            refuse_unreachable(store, rank=self.rank, size=self.size, node=self._node, address=self._address)
            where = {"store": store}
        distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
            rank=self.rank,
            world_size=self.size,
            timeout=self._patience,
            **where,
        )
        self._telling = distributed.new_group(backend="gloo", timeout=_LEADER_PATIENCE)
        if self._store is not None:
            notice_lost_links()

    def leave(self) -> None:
        """Part from the others, whether or not they are still there. May be called twice. What was told ahead is heard
        first, by those who are alive: it takes as long as they are busy."""
        self._telling = self._told = None
        self._channels = {}
        if distributed.is_initialized():
            distributed.destroy_process_group()

    def channel(self, name: str) -> Any:
        """A group of all ranks for messages from one to another, the same for the same name. Called by all."""
        if name not in self._channels:
            self._channels[name] = distributed.new_group(timeout=self._patience)
            if self._store is not None:
                notice_lost_links()
        return self._channels[name]

    def new_session(self) -> int:
        """A number for a session's messages, so that none of an earlier one that broke is taken for its own."""
        self._sessions += 1
        return self._sessions

    def tell(self, value: Any = None, *, ahead: bool = False) -> Any:
        """What rank 0 gives, as JSON, on every rank. Called by all; waits as long as rank 0 takes. With `ahead`, rank 0
        does not wait in turn until others listen, up to the next time that it tells them something."""
        if self._told is not None:
            self._told[0].wait()
            self._told = None
        text = json.dumps(value).encode() if self.leads else b""
        # Short messages, which are sent before each step, take one round; longer ones a second for what is left.
        short = torch.zeros(_SHORT_BYTES, dtype=torch.uint8)
        if self.leads:
            head = len(text).to_bytes(8, "little") + text[: _SHORT_BYTES - 8]
            short[: len(head)] = torch.frombuffer(bytearray(head), dtype=torch.uint8)
        if ahead and self.leads:
            assert len(text) <= _SHORT_BYTES - 8, "what is told ahead must be short"
            self._told = distributed.broadcast(short, 0, group=self._telling, async_op=True), short
            return value
        distributed.broadcast(short, 0, group=self._telling)
        found = bytes(short.tolist())
        length, begun = int.from_bytes(found[:8], "little"), found[8:]
        if length > len(begun):
            rest = torch.zeros(length - len(begun), dtype=torch.uint8)
            if self.leads:
                rest = torch.frombuffer(bytearray(text[len(begun) :]), dtype=torch.uint8)
            distributed.broadcast(rest, 0, group=self._telling)
            begun += rest.numpy().tobytes()
        return json.loads(begun[:length])

    def hand(self, tensor: torch.Tensor) -> torch.Tensor:
        """Fill `tensor`, on the CPU and in one piece, with what rank 0 has in its own. Called by all."""
        if tensor.numel():
            distributed.broadcast(tensor.view(-1).view(torch.uint8), 0)
        return tensor

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks, in place. Called by all."""
        distributed.all_reduce(tensor)
        return tensor

    def differ(self, value: str) -> bool:
        """Whether any rank has another value than rank 0. Called by all."""
        others = torch.tensor([int(self.tell(value) != value)])
        return bool(self.sum(others).item())


_SHORT_BYTES = 64


@dataclasses.dataclass(frozen=True)
class RankedTechnique(Technique):
    """A technique that takes one process for each of its devices. `among` gives it as one of those processes has it;
    only that can open sessions."""

    ranks: Ranks | None = None
    ranked = True

    def among(self, ranks: Ranks) -> Self:
        """This technique in the process that is one of `ranks`, which has joined the others."""
        return dataclasses.replace(self, ranks=ranks)

    def company(self) -> Ranks:
        """The ranks; refuses where there are none."""
        if self.ranks is None:
            raise TechniqueRefused(
                f"{self.name} must be opened in one process for each device, each with its rank; this one has none. "
                f"Use an engine, or technique.among(ranks)."
            )
        return self.ranks


def is_of_others(error: BaseException | None) -> bool:
    """Whether this error, or what it came of, says no more than that another rank is gone or silent.

    >>> is_of_others(RuntimeError("[.../gloo/transport/tcp/pair.cc:553] Connection closed by peer")), is_of_others(None)
    (True, False)
    """
    while error is not None:
        # gloo raises plain RuntimeErrors that name its own source; NCCL and stores have classes.
        if isinstance(error, distributed.DistError) or (type(error) is RuntimeError and "gloo/" in str(error)):
            return True
        error = error.__cause__
    return False
