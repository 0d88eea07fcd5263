"""What this machine has, found without importing torch."""

import contextlib
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

import psutil

from dovetail.vocabulary import Cluster, Device, Kind, Node


def detect() -> Cluster:
    """This machine as a cluster of one node: its CUDA devices, or, where it has none, its CPU cores.

    >>> detect().nodes[0].cores >= 1
    True
    """
    cores = available_cores()
    node = Node(
        name="n0", cores=len(cores), memory_bytes=_memory_bytes(), disk_bytes=shutil.disk_usage(os.getcwd()).total
    )
    accelerators = _accelerators()
    if accelerators:
        kinds = {kind.name: kind for _, kind in accelerators}
        devices = [Device(name=f"n0:{n}", kind=kind.name, node="n0", index=n) for n, kind in accelerators]
    else:
        kind = Kind(name=_processor_name(), processor="cpu")
        kinds = {kind.name: kind}
        devices = [Device(name=f"n0:{n}", kind=kind.name, node="n0", index=core) for n, core in enumerate(cores)]
    return Cluster(kinds=tuple(kinds.values()), nodes=(node,), devices=tuple(devices))


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


def _memory_bytes() -> int:
    total = psutil.virtual_memory().total
    # A container's limit is below the machine's.
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            total = min(total, int(Path(path).read_text()))
    return int(total)


def _accelerators() -> list[tuple[int, Kind]]:
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "" or shutil.which("nvidia-smi") is None:
        return []
    query = ["nvidia-smi", "--query-gpu=index,name,memory.total", "--format=csv,noheader,nounits"]
    try:
        found = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [_accelerator(line) for line in found.splitlines() if line.strip()]


def _accelerator(line: str) -> tuple[int, Kind]:
    index, name, mebibytes = (part.strip() for part in line.split(","))
    short = name.lower().replace("nvidia", "").strip().split()[0].removeprefix("geforce")
    # The driver and the context take some; what a task may use is less than what is printed on the box.
    memory = int(float(mebibytes) * (1 << 20) * 0.97)
    return int(index), Kind(name=short, processor="cuda", memory_bytes=memory)
