"""Random numbers that depend on seed, step, microbatch and module, and on nothing that happened before.

The global generators are reseeded from a key before every batch, every microbatch and every evaluation, so a
task that was stopped draws what it would have drawn. Modules that draw (dropout and the like) reseed once more
on entry from their own name, so that they draw the same whichever device or process they sit in.

Activation checkpointing runs a module's forward again during backward, and must draw the same there. A module
called several times has one key a call, and the second run finds its key by the generator's seed on entry,
which torch restores with the rest of the generator's state.
"""

import hashlib
import inspect
import random
import re
from collections.abc import Callable
from typing import Any

import numpy
import torch
from torch import nn

_DRAWING_WORDS = re.compile(r"drop|rand|bernoulli|multinomial|normal_|noise|exponential_|gumbel", re.IGNORECASE)


def key(*parts: int | str) -> int:
    """A 63-bit seed from what a draw depends on.

    >>> key(0, "step", 5) == key(0, "step", 5), key(0, "step", 5) == key(0, "step", 6)
    (True, False)
    """
    text = "\0".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def mix(seed: int, number: int) -> int:
    """A seed from a seed and a number, several times cheaper than `key` (the finalizer of splitmix64).

    >>> mix(1, 2) == mix(1, 2), mix(1, 2) == mix(2, 1)
    (True, False)
    """
    mixed = (seed + 0x9E3779B97F4A7C15 * (number + 1)) & 0xFFFFFFFFFFFFFFFF
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return (mixed ^ (mixed >> 31)) >> 1


def reseed(*parts: int | str) -> None:
    """Seed Python's, NumPy's and torch's global generators from a key."""
    seed = key(*parts)
    random.seed(seed)
    numpy.random.seed(seed & 0xFFFFFFFF)
    _reseed_torch(seed)


def _reseed_torch(seed: int) -> None:
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)


class KeyedRandomness:
    """Keys what one model draws. Call `begin` before each microbatch, and `close` when the session ends."""

    def __init__(self, model: nn.Module, *, seed: int, device: torch.device) -> None:
        self._seed = seed
        self._generator = _generator(device)
        self._base = 0
        self._calls: dict[str, dict[int, int]] = {}
        self._hooks = [
            module.register_forward_pre_hook(self._enter(name))
            for name, module in model.named_modules()
            if _draws(module)
        ]

    def begin(self, step: int, microbatch: int) -> None:
        """From here on draws belong to this step and microbatch."""
        self._base = key(self._seed, "step", step, microbatch)
        for calls in self._calls.values():
            calls.clear()
        # Python's and NumPy's generators were seeded when the step's batches were taken; torch's is the one
        # that models draw from.
        _reseed_torch(self._base)

    def before_batch(self, epoch: int, index: int) -> None:
        """From here on draws belong to this batch of the feed."""
        reseed(self._seed, "batch", epoch, index)

    def before_evaluation(self, step: int) -> None:
        """From here on draws belong to the evaluation after `step`."""
        self._base = key(self._seed, "evaluate", step)
        for calls in self._calls.values():
            calls.clear()
        reseed(self._seed, "evaluate", step)

    def close(self) -> None:
        """Leave the model as it was."""
        for hook in self._hooks:
            hook.remove()

    def _enter(self, name: str) -> Callable[[nn.Module, Any], None]:
        calls = self._calls.setdefault(name, {})
        number = key(name)

        def hook(module: nn.Module, arguments: Any) -> None:
            on_entry = self._generator.initial_seed()
            again = torch._C._current_graph_task_id() != -1  # recomputed inside backward
            call = calls.get(on_entry, 0) if again else len(calls)
            calls.setdefault(on_entry, call)
            self._generator.manual_seed(mix(mix(self._base, number), call))

        return hook


def _generator(device: torch.device) -> torch.Generator:
    if device.type == "cuda":
        torch.cuda.init()
        return torch.cuda.default_generators[device.index or 0]
    return torch.default_generator


def _draws(module: nn.Module) -> bool:
    if type(module).__module__.startswith("torch.nn"):
        if isinstance(module, nn.RReLU):
            return True
        # Dropout modules hold `p`; attention and recurrent modules hold `dropout`; containers hold neither.
        probability = getattr(module, "p", getattr(module, "dropout", 0.0))
        return isinstance(probability, float | int) and probability > 0
    # A module of the user's: a word in its source is enough. A needless key costs microseconds; a missing one is
    # still exact in one process, since the microbatch's own key stands.
    try:
        return bool(_DRAWING_WORDS.search(inspect.getsource(type(module).forward)))
    except (OSError, TypeError):
        return True
