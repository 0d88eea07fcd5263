"""A session that rank 0 leads: what it is asked to do, it tells the others, and all do it together."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from dovetail.train.base import SessionMember, StepReport
from dovetail.train.loop import LoopSession
from dovetail.train.ranks import Ranks
from dovetail.train.state import TrainingState

_NOTHING = TrainingState(step=0, tensors={}, values={})


class RankedSession(LoopSession):
    """A training loop in several processes. On rank 0 it is a session like any other; the others call `follow`, which
    ends when rank 0 closes it.

    After an error the ranks may be at odds, so nothing more is told: whoever meets an error leaves the ranks, and
    those who wait for it find it gone.
    """

    def __init__(self, member: SessionMember, *, device: torch.device, threads: int, ranks: Ranks) -> None:
        super().__init__(member, device=device, threads=threads)
        self._ranks = ranks
        self._is_closed = False
        self.is_broken = False
        """Whether an error ended it."""
        self.doing: Callable[..., None] = lambda action, **how: None
        """Told what is under way, in a few words, by sessions that have more to say than their callers know; with
        `computing=True` where until the next word nothing but work and other ranks is waited for."""

    def follow(self, *, doing: Callable[..., None] = lambda action, **how: None) -> None:
        """Do what rank 0 does, until it closes the session. `doing` is told what, in a few words."""
        self.doing = doing
        commands: Mapping[str, Callable[[], Any]] = {
            "advance": self.advance,
            "evaluate": self.evaluate,
            "observe": lambda: self.observe({}),
            "state": self.state,
            "load": lambda: self.load(_NOTHING),
            "timings": self.timings,
        }
        while True:
            doing(f"waiting for rank 0 after step {self._step}")
            command = self._ranks.tell()
            if command == "close":
                return
            doing(f"{command} after step {self._step}")
            commands[command]()

    def advance(self, live: Sequence[int] = (0,)) -> list[StepReport]:
        """Take one optimizer step, on all ranks."""
        if not live:
            return []
        with self._together("advance"):
            return super().advance(live)

    def observe(self, metrics: Mapping[str, float], member: int = 0) -> None:
        """Step the schedulers that step with a metric, on all ranks with what rank 0 has."""
        with self._together("observe"):
            super().observe(self._ranks.tell(dict(metrics)))

    def timings(self) -> Mapping[str, Any] | None:
        """What the ranks did when in a recent step, as an event `timed` has it, where they keep a record of that."""
        return None

    def close(self) -> None:
        """End the session on all ranks."""
        if self._ranks.leads and not self._is_closed and not self.is_broken:
            self._ranks.tell("close")
        self._is_closed = True
        self._random.close()

    @contextlib.contextmanager
    def _together(self, command: str) -> Iterator[None]:
        """Within, all ranks carry out this command; rank 0 has told them of it."""
        try:
            if self._ranks.leads:
                # Who follows may still be busy with what it can do of the next step: it need not be waited for.
                self._ranks.tell(command, ahead=command == "advance")
            yield
        except BaseException:
            self.is_broken = True
            raise


def share_state(
    state: TrainingState, ranks: Ranks, *, keep: Callable[[str, torch.Tensor], torch.Tensor]
) -> TrainingState:
    """The state that rank 0 has, on all ranks. One tensor is handed on at a time, and each rank keeps of it what `keep`
    gives for its name and the whole of it, so that nobody but rank 0 need hold everything."""
    outline = [(name, list(t.shape), str(t.dtype).removeprefix("torch.")) for name, t in state.tensors.items()]
    step, values, outline = ranks.tell([state.step, state.values, outline])
    tensors = {}
    for name, shape, dtype in outline:
        if ranks.leads:
            whole = state.tensors[name].detach().to("cpu", copy=True).contiguous()
        else:
            whole = torch.empty(shape, dtype=getattr(torch, dtype))
        tensors[name] = keep(name, ranks.hand(whole))
    return TrainingState(step=step, tensors=tensors, values=values)
