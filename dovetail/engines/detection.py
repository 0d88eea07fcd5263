"""What this machine has, found without importing torch."""

import contextlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from dovetail.engines.mps import is_mps_installed
from dovetail.native.host_memory import host_memory_bytes
from dovetail.vocabulary import Cluster, Device, Kind, Node


def detect() -> Cluster:
    """This machine as a cluster of one node: its CUDA devices, or, where it has none, its CPU cores.

    >>> detect().nodes[0].cores >= 1
    True
    """
    cores = available_cores()
    node = Node(name="n0", cores=len(cores), memory_bytes=host_memory_bytes(), disk_bytes=_disk_bytes())
    accelerators = _accelerators()
    if accelerators:
        kinds = {kind.name: kind for _, kind in accelerators}
        devices = [Device(name=f"n0:{n}", kind=kind.name, node="n0", index=n) for n, kind in accelerators]
    else:
        kind = Kind(name=_processor_name(), processor="cpu")
        kinds = {kind.name: kind}
        devices = [Device(name=f"n0:{n}", kind=kind.name, node="n0", index=core) for n, core in enumerate(cores)]
    return Cluster(kinds=tuple(kinds.values()), nodes=(node,), devices=tuple(devices))


def _disk_bytes() -> int:
    # The working folder may be gone: where several nodes of a Ray cluster are on one machine, they unpack the code that
    # was sent to them over each other's.
    try:
        return shutil.disk_usage(os.getcwd()).total
    except FileNotFoundError:
        return shutil.disk_usage(tempfile.gettempdir()).total


def available_cores() -> list[int]:
    """The cores this process may use."""
    return sorted(os.sched_getaffinity(0))


def _processor_name() -> str:
    # The model is part of the name, so that a store carried to another machine is measured there anew.
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                words = re.sub(r"\(.*?\)|@.*|CPU|Processor", " ", line.partition(":")[2]).split()
                return "cpu-" + "-".join(words[-2:]).lower()
            if line.startswith("CPU part"):  # ARM gives numbers instead of a name
                return f"cpu-{platform.machine()}-{line.partition(':')[2].strip().removeprefix('0x')}"
    return "cpu"


def _accelerators() -> list[tuple[int, Kind]]:
    if shutil.which("nvidia-smi") is None:
        return []
    query = ["nvidia-smi", "--query-gpu=index,name,memory.total", "--format=csv,noheader,nounits"]
    try:
        found = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    seen = [accelerator(line) for line in found.splitlines() if line.strip()]
    return visible([each for each in seen if each is not None], os.environ.get("CUDA_VISIBLE_DEVICES"))


def accelerator(line: str) -> tuple[int, Kind] | None:
    """The number and kind of a device from a line of `nvidia-smi`, or None where it says too little.

    >>> accelerator("1, NVIDIA GeForce RTX 3090, 24576")[1].name
    'geforce-rtx-3090'
    """
    try:
        index, name, mebibytes = (part.strip() for part in line.split(","))
        # The driver and the context take some; what a task may use is less than what is printed on the box.
        memory = int(float(mebibytes) * (1 << 20) * 0.97)
        number = int(index)
    except ValueError:
        return None
    words = [word for word in name.lower().split() if word != "nvidia"]
    name = "-".join(words) or "cuda"
    return number, Kind(name=name, processor="cuda", memory_bytes=memory, mps=is_mps_installed())


def visible(seen: list[tuple[int, Kind]], mask: str | None) -> list[tuple[int, Kind]]:
    """Those of the devices seen that CUDA_VISIBLE_DEVICES allows; as CUDA does, up to the first number it cannot be.

    >>> kind = Kind(name="h200", processor="cuda")
    >>> [number for number, _ in visible([(0, kind), (1, kind), (2, kind)], "2,0")]
    [2, 0]
    """
    if mask is None:
        return seen
    by_number, allowed = dict(seen), []
    for word in mask.split(","):
        if not word.strip().isdigit() or int(word) not in by_number:
            break
        allowed.append((int(word), by_number[int(word)]))
    return allowed
