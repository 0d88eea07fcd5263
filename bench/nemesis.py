"""A seeded nemesis over real processes, and the places where it finds them: this machine, or a Ray cluster on it.

Its choices (what, whom, how long to wait) come from its seed; where they meet a training does not, which is the point.
"""

import contextlib
import dataclasses
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from dovetail.engines import detect
from dovetail.engines.worker import PROCESS_NAME
from dovetail.testing.cut_links import cut_links

# Ray's own store holds nothing of ours; its least is 75 MiB.
OBJECT_STORE_BYTES = 80 << 20
ROOT = Path(__file__).resolve().parents[1]
# How often each fault is chosen. A worker that is stopped for good is found out by its silence, half a minute later.
LOCAL_FAULTS = {
    "worker killed": 45,
    "controller killed": 35,
    "worker given notice": 8,
    "worker paused": 8,
    "controller paused": 4,
    "worker stopped": 2,
}
RAY_FAULTS = {"worker killed": 50, "controller killed": 25, "node lost": 25, "link lost": 10}
# The share of strikes that wait for a training; the others may meet imports, trials and planning.
PATIENT = 0.8
KILLS = ("worker killed", "controller killed", "node lost")


@dataclasses.dataclass(frozen=True)
class Fault:
    """What was done to whom, and when. `cores` are those that the process kept to."""

    kind: str
    at: float
    process: int
    cores: tuple[int, ...] = ()


class Local:
    """Workers of this machine's engine: the controller's own children."""

    faults = LOCAL_FAULTS
    options: tuple[str, ...] = ()

    def __init__(self) -> None:
        # A device is a core that its processes keep to, unless it is an accelerator.
        self.bound = all(kind.processor == "cpu" for kind in detect().kinds)

    def workers(self, controller: int, recent: Callable[[], set[int]]) -> list[int]:
        """The worker processes of a controller."""
        with contextlib.suppress(psutil.Error):
            children = psutil.Process(controller).children()
            return sorted(each.pid for each in children if each.name() == PROCESS_NAME)
        return []

    def lose_node(self, chance: random.Random) -> int:
        """There is one node, and this runs on it."""
        raise NotImplementedError

    def close(self) -> None:
        """Nothing was started."""


class RayNodes:
    """A Ray cluster of several nodes on this machine; nodes besides the head can be lost, and come back."""

    faults = RAY_FAULTS
    bound = False

    def __init__(self, *, nodes: int = 3, cores: int = 1, label: str = "", variable: str = "") -> None:
        """With a `label`, each node has one of that name with its number, and so has the environment of its processes a
        `variable`, and none is to be lost: nobody is missed sooner than Ray thinks right."""
        self._folder = tempfile.TemporaryDirectory(prefix="dovetail-ray-")
        token = Path(self._folder.name) / "token"
        token.write_text(secrets.token_hex(32))
        token.chmod(0o600)
        # For this process, whose clusters read it when Ray is imported, and for the commands that it starts.
        os.environ |= {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",  # what is timed is not to yield to whatever else the machine does
        }
        from ray.cluster_utils import Cluster

        self._options = {"num_cpus": cores, "object_store_memory": OBJECT_STORE_BYTES, "include_dashboard": False}
        # A node is missed after six seconds instead of fifteen; after two, a busy machine's were.
        config = {"health_check_period_ms": 1000, "health_check_failure_threshold": 6}
        labels: list[dict[str, Any]] = [{} for _ in range(nodes)]
        for number, each in enumerate(labels if label else ()):
            each |= {"labels": {label: str(number)}, "env_vars": {variable: str(number)} if variable else {}}
        head = {**self._options, **labels[0], **({} if label else {"_system_config": config})}
        # The head is never lost: with it the whole cluster would be.
        self._cluster: Any = Cluster(initialize_head=True, head_node_args=head)
        self._nodes = [self._cluster.add_node(**self._options, **each) for each in labels[1:]]
        self._cluster.wait_for_nodes()
        self.options = ("--engine", "ray", "--address", self._cluster.address)

    def workers(self, controller: int, recent: Callable[[], set[int]]) -> list[int]:
        """The processes that trained a moment ago: their names are Ray's business."""
        return sorted(recent())

    def lose_node(self, chance: random.Random) -> int:
        """Kill a node with all that runs on it; another one takes its place."""
        node = self._nodes.pop(chance.randrange(len(self._nodes)))
        process = node.all_processes["raylet"][0].process.pid
        self._cluster.remove_node(node, allow_graceful=False)
        self._nodes.append(self._cluster.add_node(**self._options))
        return int(process)

    def close(self) -> None:
        """End the cluster."""
        self._cluster.shutdown()
        self._folder.cleanup()


Place = Local | RayNodes


class Nemesis:
    """Strikes now and then until it has killed as often as wanted; then only waits."""

    def __init__(self, place: Place, *, seed: int, kills: int, every_seconds: float) -> None:
        self._place, self._chance, self._wanted = place, random.Random(seed), kills
        self._every_seconds = every_seconds
        self._resume: list[tuple[float, int]] = []
        self.faults: list[Fault] = []
        self.rest()

    @property
    def kills(self) -> int:
        """How often it has killed."""
        return sum(fault.kind in KILLS for fault in self.faults)

    @property
    def satisfied(self) -> bool:
        """Whether it has killed as often as wanted."""
        return self.kills >= self._wanted

    def rest(self) -> None:
        """Wait a while before the next strike; mostly also until something is trained, since starting takes longer."""
        self._due = time.monotonic() + self._chance.uniform(0.1, 2 * self._every_seconds)
        self._patient = self._chance.random() < PATIENT
        self._kind = self._chance.choices(list(self._place.faults), list(self._place.faults.values()))[0]

    def strike(self, controller: int, recent: Callable[[], set[int]], before: Callable[[], None]) -> None:
        """If it is time, do something to somebody; `before` is called just before that."""
        now = time.monotonic()
        for due, process in [one for one in self._resume if one[0] <= now]:
            self._signal(process, signal.SIGCONT)
            self._resume.remove((due, process))
        if self.satisfied or now < self._due or (self._patient and not recent()):
            return
        kind = self._kind
        victims = [controller] if kind.startswith("controller") else self._place.workers(controller, recent)
        if self._patient and not kind.startswith("controller"):
            victims = sorted(set(victims) & recent())
        if not victims:
            return
        before()
        self._do(kind, self._chance.choice(victims), recent())
        self.rest()

    def _do(self, kind: str, process: int, recent: set[int]) -> None:
        if kind == "node lost":
            self.faults.append(Fault(kind, time.time(), self._place.lose_node(self._chance)))
            return
        if kind == "link lost":
            others = [each for each in recent if each != process]
            if sum(cut_links(process, other) for other in others):
                self.faults.append(Fault(kind, time.time(), process))
            return
        cores: tuple[int, ...] = ()
        with contextlib.suppress(psutil.Error):
            cores = tuple(psutil.Process(process).cpu_affinity() or ())
        what = kind.rpartition(" ")[2]
        signals = {"killed": signal.SIGKILL, "notice": signal.SIGTERM}
        at = time.time()
        if self._signal(process, signals.get(what, signal.SIGSTOP)):
            self.faults.append(Fault(kind, at, process, cores))
            if what == "paused":
                self._resume.append((time.monotonic() + self._chance.uniform(0.2, 3.0), process))

    @staticmethod
    def _signal(process: int, number: int) -> bool:
        """Whether it reached somebody: one who is dead and not buried takes any signal, and that is no fault."""
        try:
            if psutil.Process(process).status() == psutil.STATUS_ZOMBIE:
                return False
            os.kill(process, number)
        except (ProcessLookupError, psutil.NoSuchProcess):
            return False
        return True


def command(place: Place, sweep: Path, home: Path, *, save_every: int) -> list[str]:
    """`dovetail run`, with bits before speed and a budget of retries that the nemesis does not use up."""
    words = [sys.executable, "-m", "dovetail", "run", str(sweep), "--exact", "--store", str(home), "--json", "--quiet"]
    return [*words, "--save-steps", str(save_every), "--retries", "1000000", *place.options]


def forgotten(temporary: Path, home: Path) -> list[str]:
    """What runs left in their temporary folder, and in the scratch of their store."""
    # torch keeps a cache of its own there, on purpose.
    found = [each.name for each in temporary.iterdir() if not each.name.startswith(("torchinductor", "dovetail-"))]
    found += [each.name for each in temporary.glob("dovetail-*/*")]  # in the folder of this user's private ones
    scratch = home / "scratch"
    return sorted(found + [f"scratch/{each.name}" for each in (scratch.iterdir() if scratch.is_dir() else ())])


def begin(words: list[str], environment: dict[str, str], log: Path) -> "subprocess.Popen[bytes]":
    """Start a command whose words go to a log."""
    with open(log, "ab") as output:
        return subprocess.Popen(
            words, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
