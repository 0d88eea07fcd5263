"""The most memory that work took: on a CUDA device by its allocator, on a CPU by the process.

A CPU core's memory is its node's, and a worker's interpreter and libraries take part of it, so there the whole
process counts. Knows one process; knows nothing of training.
"""

from pathlib import Path

import psutil
import torch

_RESET_PEAK = "5"  # proc(5): writing 5 to clear_refs sets the peak resident size to the current one


class PeakMemory:
    """The most memory in use since this was made. One at a time in a process: both peaks are the process's own.

    >>> peak = PeakMemory(torch.device("cpu"))
    >>> kept = torch.ones(1 << 20)
    >>> peak.bytes() > kept.nbytes
    True
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._held_bytes = device, 0
        self._is_reset = True
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        else:
            self._is_reset = _reset_resident_peak()

    def note_held(self) -> None:
        """Count in what an accelerator cannot give back now: the memory of CUDA graphs is theirs also while no tensor
        is in it."""
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
            self._held_bytes = torch.cuda.memory_reserved(self._device)

    def bytes(self) -> int:
        """The most bytes held at once so far."""
        if self._device.type == "cuda":
            return max(self._held_bytes, torch.cuda.max_memory_allocated(self._device))
        now = int(psutil.Process().memory_info().rss)
        # Without the reset the peak may be that of earlier work; what is held now is the better answer.
        return max(now, _resident_peak()) if self._is_reset else now


def _reset_resident_peak() -> bool:
    try:
        Path("/proc/self/clear_refs").write_text(_RESET_PEAK)
    except OSError:  # not Linux, or not permitted in this container
        return False
    return True


def _resident_peak() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    peaks = [int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:")]
    return peaks[0] if peaks else 0
