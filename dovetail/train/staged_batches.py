"""Batches on their way to an accelerator: pinned, copied on a stream of their own, while the step before computes.

Pinning copies a batch on the host, which takes 10 to 20 ms for one of 40 MB, so another thread does it. That one never
sees the feed: batches are taken, and positions are kept, by the thread that trains, as if there were no other. Knows
devices and positions; knows nothing of how batches are read.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import torch
from torch.utils.data._utils.pin_memory import pin_memory

from dovetail.feeds.keyed_draws import one_thread
from dovetail.train.loop import tensors_in, to_device

# One that computes, one that is there, one on its way.
AHEAD = 2


_Copied = tuple[Any, torch.cuda.Event | None]


class ReadyBatches(Protocol):
    """Batches with a position, of which it can be asked whether the next one is there."""

    definition: Any

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Any]: ...
    def is_ready(self) -> bool: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class StagedBatches:
    """The same batches on a device. Those that are there already are copied ahead, in a thread that ends with the
    iteration; none is waited for before it is asked for. Its position is that of the last batch it gave, not of the
    last one it copied.

    >>> from dovetail.feeds import feed
    >>> with feed(range(6)).batch(2).open() as running:
    ...     batches = StagedBatches(running, device=torch.device("cpu"))
    ...     [batch.tolist() for batch in batches]
    [[0, 1], [2, 3], [4, 5]]
    """

    def __init__(self, batches: ReadyBatches, *, device: torch.device) -> None:
        self._batches, self._device = batches, device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._at: dict[str, Any] | None = None

    @property
    def definition(self) -> Any:
        """What reads them anew, for whoever only looks at them."""
        return self._batches.definition

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        self._at = self._batches.state_dict()
        source = iter(self._batches)
        staged: deque[tuple[Future[_Copied], dict[str, Any]]] = deque()
        ended = False
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="staging") as stager:
            while True:
                while not ended and (not staged or (len(staged) <= AHEAD and self._batches.is_ready())):
                    try:
                        copying = stager.submit(self._copy, next(source))
                    except StopIteration:
                        ended = True
                    else:
                        staged.append((copying, self._batches.state_dict()))
                if not staged:
                    self._at = None
                    return
                copying, after = staged.popleft()
                arrived = self._await_copy(*copying.result())
                self._at = after
                del copying  # which holds its batch
                yield arrived

    def state_dict(self) -> dict[str, Any]:
        """Where it stands, after the last batch that it gave."""
        return self._batches.state_dict() if self._at is None else self._at

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on at the next `iter` where this state was taken."""
        self._at = None
        self._batches.load_state_dict(state)

    def _copy(self, batch: Any) -> _Copied:
        if self._stream is None or not _is_plain(batch):
            return batch, None
        # From memory that is not pinned a copy waits for the device. The cores of more threads are the feed's.
        with one_thread():
            pinned = pin_memory(batch)
        with torch.cuda.stream(self._stream):
            moved = to_device(pinned, self._device)
        return moved, self._stream.record_event()

    def _await_copy(self, batch: Any, copied: torch.cuda.Event | None) -> Any:
        if copied is not None:
            computing = torch.cuda.current_stream(self._device)
            computing.wait_event(copied)
            for tensor in tensors_in(batch):
                # So that its memory is not given to the next copy while this step still reads it.
                tensor.record_stream(computing)
        return batch


def _is_plain(batch: Any) -> bool:
    """Whether all tensors of a batch can be found and are on the host: what holds others moves them as it likes."""
    if isinstance(batch, torch.Tensor):
        return batch.device.type == "cpu"
    if isinstance(batch, Mapping):
        return all(map(_is_plain, batch.values()))
    if isinstance(batch, list | tuple):
        return all(map(_is_plain, batch))
    return not hasattr(batch, "to")
