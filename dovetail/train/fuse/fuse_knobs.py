"""What an option may ask of fuse."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from dovetail.vocabulary import ProgramError

_WAYS = ("off", "graph", "full")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FuseKnobs:
    """What an option may ask of fuse. `compile`: "off", "graph" (a CUDA graph of each step, the default on CUDA) or
    "full" (torch.compile and, on CUDA, a graph), which takes a minute to begin with and pays in long trainings.

    >>> FuseKnobs.read({}).compile_on(torch.device("cpu"))
    'off'
    """

    compile: str | None = None

    @staticmethod
    def read(knobs: Mapping[str, Any]) -> "FuseKnobs":
        """From an option's knobs; names that are none of ours are refused."""
        known = {field.name for field in dataclasses.fields(FuseKnobs)}
        if unknown := sorted(knobs.keys() - known):
            raise ProgramError(f"fuse's knobs must be among {sorted(known)}, got {unknown}.")
        if knobs.get("compile") not in (None, *_WAYS):
            raise ProgramError(f"fuse's knob 'compile' must be one of {list(_WAYS)}, got {knobs['compile']!r}.")
        return FuseKnobs(**knobs)

    def compile_on(self, device: torch.device) -> str:
        """How steps run on this device."""
        return self.compile or ("graph" if device.type == "cuda" else "off")
