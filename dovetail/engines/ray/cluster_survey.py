"""A Ray cluster's nodes as a `Cluster`: how many devices Ray says there are, and what each node finds itself to have.

A kind's name is, in this order: what the node's custom resource `kind:NAME` says, what the node detects, Ray's
accelerator type. CPU cores are devices where a node has nothing better, as on one machine.
"""

import contextlib
import dataclasses
import importlib.metadata
import json
import platform
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dovetail.engines.detection import available_cores, detect
from dovetail.engines.provisioning.base import NUMBER
from dovetail.engines.ray.connection import installed
from dovetail.engines.ray.node_links import measure_links
from dovetail.engines.ray.node_monitor import find_notices
from dovetail.feeds.shards import probe_url
from dovetail.planning.options.kinds import SHEETS
from dovetail.store import known_links
from dovetail.vocabulary import Cluster, Device, DovetailError, Kind, Node, dumps, from_json
from dovetail.vocabulary.shards import UrlProbe
from dovetail.vocabulary.units import show_seconds

LOOK_SECONDS = 55.0
# So long the controller waits for what files elsewhere come at; others' orders wait with it.
PROBE_SECONDS = 20.0
# So long Ray takes at most to notice that a node is lost.
NOTICE_SECONDS = 15.0
CLOCK_SECONDS = 60.0
_ACCELERATOR, _KIND = "accelerator_type:", "kind:"


def survey(home: Path, *, shared: Sequence[Path] | None = None) -> tuple[Cluster, dict[str, str]]:
    """The Ray cluster to which this process is connected, and Ray's number for each of its nodes by name. Refuses one
    whose nodes do not all see the folders in `shared`: the store's directory `home`, unless told otherwise. The links
    between them are those that the store knows and, where it knows none, measured. Nodes that were given notice are
    left out: Ray gives them nothing to do any more; so are those that are lost meanwhile."""
    until = time.monotonic() + LOOK_SECONDS
    while True:
        nodes = _present_nodes()
        try:
            return _survey(nodes, home, [home] if shared is None else list(shared))
        except _Unreached:
            now = time.monotonic()
            if now > until or not _has_changed(nodes, until=min(until, now + NOTICE_SECONDS)):
                raise


class _Unreached(DovetailError):
    """A node that did not answer, or that others could not reach: it may have been lost meanwhile."""


def _present_nodes() -> list[Mapping[str, Any]]:
    leaving = find_notices()
    return sorted((node for node in installed().nodes() if node["Alive"] and node["NodeID"] not in leaving), key=_rank)


def _has_changed(before: Sequence[Mapping[str, Any]], *, until: float) -> bool:
    """Whether other nodes are there than before, now or before a moment by when Ray would have noticed it."""
    numbers = {node["NodeID"] for node in before}
    while {node["NodeID"] for node in _present_nodes()} == numbers:
        if time.monotonic() > until:
            return False
        time.sleep(0.5)
    return True


def _survey(nodes: Sequence[Mapping[str, Any]], home: Path, folders: Sequence[Path]) -> tuple[Cluster, dict[str, str]]:
    ray = installed()
    with contextlib.ExitStack() as stack:
        marks = place_marks(folders, stack)
        looks = {begin_look(node["NodeID"], marks): node["NodeManagerHostname"] for node in nodes}
        found = _await_looks(ray, looks)
    for node, each in zip(nodes, found, strict=True):
        check_look(node["NodeManagerHostname"], each, folders)
    cluster, numbers = described(nodes, found)
    known = known_links(home, numbers, now=time.time())
    try:
        measured = measure_links(numbers, known=[frozenset((link.source, link.target)) for link in known])
    except (DovetailError, ray.exceptions.RayError) as error:
        raise _Unreached(_last_line(error)) from error
    return dataclasses.replace(cluster, links=(*known, *measured)), numbers


def _await_looks(ray: Any, looks: Mapping[Any, str]) -> list[dict[str, Any]]:
    """What the nodes found, each by its machine; each answer is read as it comes, for it has the time of then."""
    found: dict[Any, dict[str, Any]] = {}
    silent, until = list(looks), time.monotonic() + LOOK_SECONDS
    while silent:
        ready, silent = ray.wait(silent, timeout=max(0.0, until - time.monotonic()))
        if not ready:
            raise DovetailError(
                f"each node of the Ray cluster must tell what it has; {', '.join(looks[each] for each in silent)} did "
                f"not within {LOOK_SECONDS:.0f} s. Look whether its ports are open to the other nodes, and whether it "
                f"has the same Ray and Python."
            )
        try:
            found |= {look: read_look(ray.get(look)) for look in ready}
        except ray.exceptions.RayError as error:
            kind = DovetailError if isinstance(error, ray.exceptions.RayTaskError) else _Unreached
            raise kind(f"each node of the Ray cluster must tell what it has; found: {_last_line(error)}") from error
    return [found[look] for look in looks]


def _last_line(error: Exception) -> str:
    """What an error of Ray's says, under the frames of its own."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]


def leaving_nodes() -> list[tuple[str, int, float]]:
    """The nodes that were given notice, which cannot be asked any more: of each, as far as Ray knows, the kind and the
    number of its devices, and when it will be gone."""
    notices, nothing = find_notices(), Cluster(kinds=(), nodes=(), devices=())
    found = []
    for node in sorted(
        (node for node in installed().nodes() if node["Alive"] and node["NodeID"] in notices), key=_rank
    ):
        resources = node["Resources"]
        count = int(resources.get("GPU", 0)) or int(resources.get("CPU", 0))
        kind = _kind(resources, nothing, processor="cuda" if resources.get("GPU") else "cpu")
        found.append((kind.name, count, notices[node["NodeID"]]))
    return found


def place_marks(folders: Sequence[Path], stack: contextlib.ExitStack) -> list[str]:
    """A file in each of these folders, until the stack is closed: a node that sees them shares the folders."""
    return [stack.enter_context(tempfile.NamedTemporaryFile(dir=folder, prefix=".ray-")).name for folder in folders]


def begin_look(number: str, marks: Sequence[str]) -> Any:
    """Ask the node with this number what it has, and whether it sees these files; Ray's call."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    where = NodeAffinitySchedulingStrategy(number, soft=False)
    return installed().remote(_look).options(num_cpus=0, scheduling_strategy=where).remote(list(marks))


def find_paths(nodes: Mapping[str, str], paths: Sequence[str]) -> dict[str, list[str]]:
    """Which of these paths exist on which nodes, these by name with Ray's numbers. A node that does not answer has
    none."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ray = installed()
    remote = ray.remote(_existing)
    asked = {
        node: remote.options(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(number, soft=False)).remote(
            list(paths)
        )
        for node, number in nodes.items()
    }
    found: dict[str, list[str]] = {}
    for node, call in asked.items():
        try:
            found[node] = ray.get(call, timeout=LOOK_SECONDS)
        except ray.exceptions.RayError:
            found[node] = []
    return found


def probe_urls(readers: Mapping[str, str]) -> dict[str, UrlProbe | None]:
    """What nodes, these by Ray's numbers, find that read the beginning of each of these files: None of one that cannot
    be read there. One that does not come in time is left out."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ray = installed()
    remote = ray.remote(probe_url)
    calls = {
        remote.options(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(number, soft=False)).remote(
            url
        ): url
        for url, number in readers.items()
    }
    ready, silent = ray.wait(list(calls), num_returns=len(calls), timeout=PROBE_SECONDS) if calls else ([], [])
    for call in silent:
        ray.cancel(call, force=True)
    found: dict[str, UrlProbe | None] = {}
    for call in ready:
        with contextlib.suppress(ray.exceptions.RayError):
            found[calls[call]] = ray.get(call)
    return found


def _existing(paths: list[str]) -> list[str]:
    """Those of these paths that exist here; runs on a node."""
    return [path for path in paths if Path(path).exists()]


def _look(marks: list[str]) -> bytes:
    """What a node finds itself to have, whether it sees these files, and whether it demands a token; runs there."""
    from ray._private.authentication.authentication_utils import is_token_auth_enabled

    return dumps(
        {
            "cluster": detect(),
            "cores": available_cores(),
            "shares": [Path(mark).is_file() for mark in marks],
            "guarded": is_token_auth_enabled(),
            "ray": importlib.metadata.version("ray"),
            "python": platform.python_version(),
            "clock": time.time(),
        }
    ).encode()


def read_look(answer: bytes, *, unseen_seconds: float = 0.0) -> dict[str, Any]:
    """What a node found of itself, and by how much its clock is ahead of this one, at least; the answer may have lain
    there unseen for so many seconds.

    >>> read_look(dumps({"clock": time.time() - 90.0}).encode(), unseen_seconds=80.0)["ahead_seconds"] > -11.0
    True
    """
    found: dict[str, Any] = json.loads(answer)
    ahead = found["clock"] - time.time()
    return {**found, "ahead_seconds": ahead if ahead > 0 else min(0.0, ahead + unseen_seconds)}


def check_look(machine: str, found: Mapping[str, Any], folders: Sequence[Path]) -> None:
    """Refuse a node that found this of itself, where it cannot be used."""
    for what, here in (("ray", importlib.metadata.version("ray")), ("python", platform.python_version())):
        there = found.get(what, here)
        if there.split(".")[:2] != here.split(".")[:2]:
            raise DovetailError(
                f"all nodes must have the same {what.capitalize()}; {machine} has {there}, the controller {here}. "
                f"Install {here} there."
            )
    ahead = found["ahead_seconds"]
    if abs(ahead) >= CLOCK_SECONDS:
        raise DovetailError(
            f"the clocks of all nodes must agree within a minute, since notices and prices have times; that of "
            f"{machine} is {show_seconds(abs(ahead))} {'ahead of' if ahead > 0 else 'behind'} the controller's. Set it "
            f"by NTP."
        )
    if not found["guarded"]:
        raise DovetailError(
            f"the Ray cluster must have token authentication on; on {machine} it is off, so anybody who reaches that "
            f"machine could run code there. Start the cluster with RAY_AUTH_MODE=token on every node."
        )
    for folder, is_seen in zip(folders, found["shares"], strict=True):
        if not is_seen:
            raise DovetailError(
                f"the store's directory, or that of its checkpoints, must be shared by all nodes under one path; "
                f"{machine} does not see the files at {folder.resolve()}. Use --store with a directory on a shared "
                f"file system, or --checkpoints with a URL that fsspec reaches."
            )


def described(
    nodes: Sequence[Mapping[str, Any]],
    found: Sequence[Mapping[str, Any]],
    *,
    first: int = 0,
    dealt: Counter[str] | None = None,
) -> tuple[Cluster, dict[str, str]]:
    """The cluster of these nodes, as `ray.nodes()` gives them, of which each found itself to have so much, named from
    number `first` on. Several nodes may be on one machine: each gets cores of its own, if there are, after those that
    were `dealt`.

    >>> node = {"NodeID": "ab", "NodeManagerHostname": "a", "Resources": {"CPU": 2.0, "kind:fast": 1.0}}
    >>> here = Cluster.uniform(Kind(name="cpu-xeon", processor="cpu"), devices_per_node=4)
    >>> cluster, numbers = described([node], [{"cluster": json.loads(dumps(here)), "cores": [0, 1, 2, 3]}])
    >>> [(device.name, device.kind) for device in cluster.devices], numbers
    ([('n0:0', 'fast'), ('n0:1', 'fast')], {'n0': 'ab'})
    """
    kinds: dict[str, Kind] = {}
    hosts: list[Node] = []
    devices: list[Device] = []
    numbers: dict[str, str] = {}
    dealt = Counter() if dealt is None else dealt
    for node, each in zip(nodes, found, strict=True):
        resources, here = node["Resources"], from_json(Cluster, each["cluster"])
        cores, accelerators = int(resources.get("CPU", 0)), int(resources.get("GPU", 0))
        if not (cores or accelerators):
            continue  # a head that only leads
        name, machine = f"n{first + len(hosts)}", node["NodeManagerHostname"]
        numbers[name] = node["NodeID"]
        kind = _kind(resources, here, processor="cuda" if accelerators else "cpu")
        kinds.setdefault(kind.name, kind)
        if accelerators:
            seen = [device.index for device in here.devices if here.kind(device.kind).processor == "cuda"]
            indices = seen if len(seen) == accelerators else list(range(accelerators))
        else:
            indices = [each["cores"][(dealt[machine] + n) % len(each["cores"])] for n in range(cores)]
            dealt[machine] += cores
        devices += [Device(name=f"{name}:{n}", kind=kind.name, node=name, index=i) for n, i in enumerate(indices)]
        memory = int(resources.get("memory", here.nodes[0].memory_bytes))
        labels = {key: value for key, value in node.get("Labels", {}).items() if not key.startswith("ray.io/")}
        labels[NUMBER] = node["NodeID"]
        host = dataclasses.replace(here.nodes[0], name=name, cores=max(1, cores), memory_bytes=memory, labels=labels)
        hosts.append(host)
    return Cluster(kinds=tuple(kinds.values()), nodes=tuple(hosts), devices=tuple(devices)), numbers


def _kind(resources: Mapping[str, float], here: Cluster, *, processor: str) -> Kind:
    found = next((kind for kind in here.kinds if kind.processor == processor), None)
    if found is None:
        stated = next((key.removeprefix(_ACCELERATOR).lower() for key in resources if key.startswith(_ACCELERATOR)), "")
        sheet = SHEETS.get(stated)
        memory = sheet.memory_bytes if sheet else 0
        found = Kind(name=stated or processor, processor=processor, memory_bytes=memory)
    named = next((key.removeprefix(_KIND) for key in resources if key.startswith(_KIND)), "")
    return dataclasses.replace(found, name=named) if named else found


def _rank(node: Mapping[str, Any]) -> tuple[bool, str, str]:
    # The head first, then by machine, so that names stay from run to run.
    return "node:__internal_head__" not in node["Resources"], node["NodeManagerHostname"], node["NodeID"]
