"""What a process of a controller is started with: its environment, and its folder."""

import os
import socket
import sys

from dovetail.describe.installed import standard_paths
from dovetail.engines.worker_handle import threads_of
from dovetail.vocabulary import Cluster

# What reading a workload may change without a worker that started before it being another: it is told. The last two
# libraries set that come with scikit-learn.
_HARMLESS = {"PYTHONPATH", "PYTEST_CURRENT_TEST", "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK"}


class Origin:
    """The environment and the folder that a process of these devices was started with."""

    def __init__(self, devices: tuple[str, ...], cluster: Cluster) -> None:
        self._devices, self._cluster = devices, cluster
        self.environment, self._folder = environment_of(devices, cluster), os.getcwd()
        self.harmless = set(_HARMLESS)  # variables that may change without the process being another

    def is_current(self) -> bool:
        """Whether a process started now would have the same."""
        now = environment_of(self._devices, self._cluster)
        changed = {name for name, _ in now.items() ^ self.environment.items()}
        return changed <= self.harmless and os.getcwd() == self._folder


def environment_of(devices: tuple[str, ...], cluster: Cluster) -> dict[str, str]:
    """The environment of a process of these devices that is started now."""
    found = cluster.device(devices[0])
    environment = dict(os.environ)
    environment["OMP_NUM_THREADS"] = str(threads_of(devices, cluster))
    # What the controller can import, its workers can; but what lies in the user's folders is never taken for the
    # standard library by what a worker itself imports.
    paths = dict.fromkeys([*standard_paths(), *(path or os.getcwd() for path in sys.path)])
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    environment.setdefault("PYTHONUNBUFFERED", "1")
    # Ranks are all on this machine: what they say to one another need not leave it.
    if loopback := [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]:
        environment.setdefault("GLOO_SOCKET_IFNAME", loopback[0])
        environment.setdefault("NCCL_SOCKET_IFNAME", loopback[0])
    if cluster.kind(found.kind).processor == "cuda":
        indices = [str(cluster.device(device).index) for device in devices]
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(indices)
        environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # the order in which they were detected
        # Without it cuBLAS may compute other bits each time, whatever torch is told.
        environment.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        # Without it the allocator loses several GiB of a 24 GiB budget between its blocks: a spilled model of 6.9
        # billion parameters did not fit its trial. The variable has an older name, too.
        if not {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"} & environment.keys():
            environment["PYTORCH_ALLOC_CONF"] = environment["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    return environment
