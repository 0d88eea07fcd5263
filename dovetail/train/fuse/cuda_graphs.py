"""Faster steps: functions that are compiled where that works, and steps that are captured once and replayed.

With many small kernels a device waits for Python, and a CUDA graph has none. A step is captured after it has run twice,
which is what warming up takes; nothing is computed twice for that.
"""

import warnings
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch


class Compiled:
    """Two versions of one function. The fast one is used until it fails before it has ever worked."""

    def __init__(self, function: Callable[..., Any], *, compile: bool) -> None:
        self.plain = function
        self._fast = torch.compile(function, dynamic=False) if compile else None
        self._proven = False
        self.failure: str | None = None
        """Why the plain version is used where it should not be."""

    def call(self, *given: Any) -> Any:
        """The function, in the version that works."""
        return self.run(lambda function: function(*given))

    def run(self, attempt: Callable[[Callable[..., Any]], Any]) -> Any:
        """What `attempt` gives with the version that works. `attempt` must change nothing before its function ran."""
        if self._fast is None:
            return attempt(self.plain)
        try:
            found = attempt(self._fast)
        except Exception as error:
            if self._proven:
                raise
            # The program's own errors come again from the plain version.
            self.failure = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            self._fast = None
            found = attempt(self.plain)
            warnings.warn(f"fuse runs without torch.compile: {self.failure}", stacklevel=2)
            return found
        self._proven = True
        return found


_WARM = 2
_MOST = 4  # of different shapes; each keeps its activations' memory

Compute = Callable[[Sequence[torch.Tensor]], tuple[torch.Tensor, list[dict[str, Any]]]]


class Graphs:
    """Runs steps whose inputs are tensors: plainly at first, then by replaying what was captured."""

    def __init__(self, device: torch.device) -> None:
        self._seen: dict[Hashable, int] = {}
        self._captured: dict[Hashable, _Captured] = {}
        # Warming up is done on the stream that captures: autograd remembers where it has been.
        self._stream = torch.cuda.Stream(device)
        self.failure: str | None = None
        """Why steps run plainly, where capturing failed."""

    def run(
        self, key: Hashable, compute: Compute, inputs: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, list[dict[str, Any]]]:
        """What `compute(inputs)` gives, its effects included. Equal keys stand for equal shapes and functions."""
        if key in self._captured:
            return self._captured[key].replay(inputs)
        seen = self._seen[key] = self._seen.get(key, 0) + 1
        if self.failure or len(self._captured) >= _MOST:
            return compute(inputs)
        if seen <= _WARM:
            return self._run_aside(compute, inputs)
        try:
            self._captured[key] = _Captured(compute, inputs, self._stream)
        except Exception as error:
            # A capture that failed has computed nothing: go on without.
            self.failure = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            warnings.warn(f"fuse runs without CUDA graphs: {self.failure}", stacklevel=2)
            torch.cuda.synchronize()
            return compute(inputs)
        return self._captured[key].replay(inputs)

    def _run_aside(self, compute: Compute, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, list[dict[str, Any]]]:
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            found = compute(inputs)
        current.wait_stream(self._stream)
        return found

    def clear(self) -> None:
        """Forget everything, since what was captured works on tensors that are to go."""
        self._seen, self._captured = {}, {}


class _Captured:
    def __init__(self, compute: Compute, inputs: Sequence[torch.Tensor], stream: torch.cuda.Stream) -> None:
        self._inputs = [tensor.clone() for tensor in inputs]
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # a graph has memory of its own
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, stream=stream):
            self._outputs = compute(self._inputs)

    def replay(self, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, list[dict[str, Any]]]:
        for own, given in zip(self._inputs, inputs, strict=True):
            own.copy_(given, non_blocking=True)
        self._graph.replay()
        losses, metrics = self._outputs
        return losses.clone(), [{name: _own(value) for name, value in each.items()} for each in metrics]


def _own(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value
