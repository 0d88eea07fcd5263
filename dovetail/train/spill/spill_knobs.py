"""What an option may ask of spill and interleave."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import psutil
import torch

from dovetail.vocabulary import ProgramError


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpillKnobs:
    """What an option may ask of spill. None: all there is, or found out by the first step.

    >>> SpillKnobs.read({"device_bytes": 8 << 30}).recompute
    False
    """

    device_bytes: int | None = None
    host_bytes: int | None = None
    disk_bytes: int = 0
    disk_directory: str | None = None
    recompute: bool = False
    depth: int | None = None

    @staticmethod
    def read(knobs: Mapping[str, Any]) -> "SpillKnobs":
        """From an option's knobs; names that are none of ours are refused."""
        known = {field.name for field in dataclasses.fields(SpillKnobs)}
        if unknown := sorted(knobs.keys() - known):
            raise ProgramError(f"spill's knobs must be among {sorted(known)}, got {unknown}.")
        return SpillKnobs(**knobs)

    def device_budget(self, device: torch.device) -> int:
        """Bytes of the device that may be used."""
        if self.device_bytes:
            return self.device_bytes
        if device.type != "cuda":
            return psutil.virtual_memory().available // 2
        free, total = torch.cuda.mem_get_info(device)
        # A worker on a device of limited memory may take only a part of it.
        allowed = total * torch.cuda.get_per_process_memory_fraction(device) - torch.cuda.memory_reserved(device)
        return int(min(free, allowed))

    def host_budget(self) -> int:
        """Bytes of the host that may be used."""
        return self.host_bytes or int(psutil.virtual_memory().available)
