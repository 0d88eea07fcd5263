"""The engine `ray`: workers on the nodes of a Ray cluster, each node's held by an actor there.

Ray reserves, ships code, starts the actors and says what became of their nodes; which worker does what on which device
is decided here, as on one machine. A node's devices are reserved for as long as the run lasts, in one placement group a
node, so that all devices of a gang are there when it starts, and no other job of the cluster gets between.
"""

import os
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dovetail.engines.fork_server import PRELOADED
from dovetail.engines.ray.arrivals import Arrivals, RefusedNode
from dovetail.engines.ray.cluster_survey import find_paths, probe_urls
from dovetail.engines.ray.connection import installed
from dovetail.engines.ray.core_borrowing import GROUP
from dovetail.engines.ray.host import Host
from dovetail.engines.ray.host_link import HostLink, RemoteWorker, answered
from dovetail.engines.ray.node_monitor import NodeMonitor
from dovetail.engines.ray.warming import WARM_WORKERS, WarmingNode
from dovetail.engines.worker_engine import WorkerEngine
from dovetail.engines.worker_handle import WorkerHandle, cores_of
from dovetail.store import make_scratch
from dovetail.vocabulary import Cluster, DovetailError, dumps, to_json
from dovetail.vocabulary.events import Warned
from dovetail.vocabulary.node_events import DevicesJoined, DevicesLeft, NodeLeaving
from dovetail.vocabulary.shards import UrlProbe

RESERVE_SECONDS = 60.0
CLOSE_SECONDS = 10.0
# So long a host waits for a controller that says nothing, which may be stopped. Of one that has ended Ray tells it.
CONTROLLER_SECONDS = 180.0
# What belongs to one machine or to Ray itself does not travel with the rest of the environment.
_STAYS = ("RAY_", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "PYTHONPATH", "VIRTUAL_ENV", "TMPDIR", "SSH_", "XDG_")


class RayEngine(WorkerEngine):
    """Placements on a Ray cluster to which this process is connected. `nodes` are Ray's numbers of the cluster's
    nodes, by name, as `survey` gives them; `shared` are the folders that those must see that join later, `home` unless
    told otherwise."""

    may_grow = True

    def __init__(
        self,
        cluster: Cluster,
        *,
        nodes: Mapping[str, str],
        home: Path,
        silence_seconds: float = 20.0,
        shared: Sequence[Path] | None = None,
    ) -> None:
        super().__init__(cluster, home=home, silence_seconds=silence_seconds)
        self._ray, self._nodes = installed(), dict(nodes)
        self._links: dict[str, HostLink] = {}
        self._meetings: dict[str, list[HostLink]] = {}
        self._monitor = NodeMonitor(self._ray, beat=self._send_heartbeats)
        present = self._ray.nodes()
        self._addresses = {each["NodeID"]: each["NodeManagerAddress"] for each in present}
        self._groups: dict[str, Any] = {}
        self._arrivals = Arrivals(self._ray, folders=[home] if shared is None else shared, reserve=self._reserve_node)
        counts = Counter(device.node for device in cluster.devices)
        self._arrivals.know(present, names=self._nodes, devices=counts)
        everything = tuple(device.name for device in cluster.devices)
        self._pending.append(DevicesJoined(at_seconds=self.now(), devices=everything, cluster=cluster, anew=True))
        self._warming: dict[str, WarmingNode] = {}  # nodes of which it is not said yet that they have joined
        self._noticed: set[str] = set()  # nodes of which it was said that they leave
        self._departed: set[str] = set()  # nodes of which that was said
        try:
            self._reserve()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End all workers and their hosts, and give the reservation back."""
        if not self._monitor.silent(self._silence_seconds):
            super().close()
            # With its head gone, which nobody may have noticed yet, Ray answers no more and ends this process after a
            # minute: hosts end by themselves when nobody asks for their news.
            giving_back = threading.Thread(target=self._give_back, daemon=True)
            giving_back.start()
            giving_back.join(CLOSE_SECONDS)
        self._links.clear()
        self._groups.clear()
        self._monitor.close()

    def find(self, paths: Collection[str]) -> Mapping[str, Collection[str]]:
        """Which of these paths exist on which of the nodes that are there."""
        return find_paths(self._present(), sorted(paths))

    def probe_urls(self, readers: Mapping[str, str]) -> Mapping[str, UrlProbe | None]:
        """What the nodes find that read, all at once, the beginning of each file."""
        present = self._present()
        return probe_urls({url: present[node] for url, node in readers.items() if node in present})

    def _present(self) -> dict[str, str]:
        return {node: number for node, number in self._nodes.items() if not self._monitor.lost(number)}

    def _give_back(self) -> None:
        for link in list(self._links.values()):
            link.close()
        for group in list(self._groups.values()):
            self._ray.util.remove_placement_group(group)

    def _reserve(self) -> None:
        for node, number in self._nodes.items():
            self._groups[node] = self._reserve_node(node, self._cluster, number)
        until = time.monotonic() + RESERVE_SECONDS
        for node, group in self._groups.items():
            while not group.wait(1.0):
                if self._monitor.lost(self._nodes[node]):
                    break  # it is told as departed
                if time.monotonic() < until:
                    continue
                raise DovetailError(
                    f"the devices of node {node} must be free for this run; after {RESERVE_SECONDS:.0f} s Ray could "
                    f"not reserve {group.bundle_specs[0]} there. See 'ray status' for who holds them."
                )

    def _reserve_node(self, node: str, cluster: Cluster, number: str) -> Any:
        """Ask Ray for the devices of a node; the placement group may take a moment to be there."""
        from ray.util.placement_group import placement_group

        devices = tuple(device.name for device in cluster.devices if device.node == node)
        cores = cores_of(devices, cluster)
        bundle = {"CPU": len(cores) or cluster.node(node).cores, "GPU": len(devices) - len(cores)}
        return placement_group(
            [{name: count for name, count in bundle.items() if count}],
            strategy="STRICT_PACK",
            bundle_label_selector=[{"ray.io/node-id": number}],
        )

    def dismiss(self, devices: Collection[str]) -> None:
        """Give a node's reservation back, and end its host: Ray may take it away once it is idle."""
        for node in {self._cluster.device(device).node for device in devices}:
            if (link := self._links.get(node)) is not None:
                link.close()
            if (group := self._groups.pop(node, None)) is not None and node not in self._departed:
                self._ray.util.remove_placement_group(group)

    def _start_worker(self, devices: tuple[str, ...], lane: int = 0) -> WorkerHandle:
        (node,) = {self._cluster.device(device).node for device in devices}
        return self._link(node).start_worker(devices)

    def _link(self, node: str) -> HostLink:
        link = self._links.get(node)
        if link is None or link.lost:
            link = self._links[node] = HostLink(
                node,
                ray=self._ray,
                host=self._host(node),
                logs=self._home / "logs",
                silence_seconds=self._silence_seconds,
                now=self._monitor.running_seconds,
            )
        return link

    def _host(self, node: str) -> Any:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        given = {
            "cluster": to_json(self._cluster),
            "node": node,
            "home": str(self._home),
            "mark": str(make_scratch(self._home, prefix="mark-")),
            "address": self._addresses.get(self._nodes[node], ""),
            "environment": {k: v for k, v in os.environ.items() if not k.startswith(_STAYS)},
            "patience_seconds": max(CONTROLLER_SECONDS, self._silence_seconds),
        }
        cores = self._cluster.node(node).cores
        # For each core that it lends or borrows one that waits, and one that sends; and for ranks that meet there.
        lending = {GROUP: 4 * cores + 40 + len(self._cluster.devices)}
        remote = self._ray.remote(concurrency_groups=lending)(Host).options(
            num_cpus=0,  # the group holds what the workers use
            max_restarts=0,
            max_concurrency=4,  # a pull that waits and a post, and each once more if it had to be made again
            scheduling_strategy=PlacementGroupSchedulingStrategy(self._groups[node], placement_group_bundle_index=0),
        )
        return remote.remote(dumps(given).encode())

    def _receive(self, seconds: float) -> Iterable[tuple[WorkerHandle, list[dict[str, Any]] | None]]:
        until = time.monotonic() + seconds
        while True:
            self._monitor.check(self._silence_seconds)
            self._check_nodes()
            self._admit_nodes()
            self._take_answers(until - time.monotonic())
            self._introduce_hosts()
            heard = [w for w in self._workers.values() if isinstance(w, RemoteWorker) and (w.lines or w.is_gone)]
            if heard or self._pending or time.monotonic() >= until:
                break
        for worker in heard:
            if self._workers.get(worker.place) is worker:
                lines, worker.lines = worker.lines, []
                yield worker, lines
            if worker.is_gone and self._workers.get(worker.place) is worker:
                yield worker, None

    def _check_nodes(self) -> None:
        """Report once of each lost node which devices went with it, and mark its workers as lost."""
        for node, number in self._nodes.items():
            reason = self._monitor.lost(number)
            if reason and node not in self._departed:
                self._departed.add(node)
                devices = tuple(device.name for device in self._cluster.devices if device.node == node)
                left = DevicesLeft(at_seconds=self.now(), devices=devices, reason=f"node {node} is lost: {reason}")
                self._pending += [left] if self._warming.pop(node, None) is None else []
            link = self._links.get(node)
            if reason and link is not None and not link.lost:
                link.mark_lost(reason)
            leaves = self._monitor.draining.get(number)
            if leaves is not None and node not in (self._noticed | self._departed | self._warming.keys()):
                self._noticed.add(node)
                told = "Ray drains it"
                self._pending.append(NodeLeaving(at_seconds=self.now(), node=node, leaves_seconds=leaves, reason=told))

    def _admit_nodes(self) -> None:
        """Have nodes that join get ready, and report those that are, and those that cannot be used."""
        for each in self._arrivals.poll(self._monitor.nodes, leaving=self._monitor.draining):
            if isinstance(each, RefusedNode):
                message = f"a node on {each.machine} has joined and is not used: {each.reason}"
                self._pending.append(Warned(at_seconds=self.now(), message=message))
                continue
            limits = [kind.memory_bytes for kind in self._cluster.kinds if kind.limited]
            part = each.cluster.limit_memory(min(limits)) if limits else each.cluster
            self._cluster = self._cluster.joined_by(part)
            self._nodes[each.name], self._groups[each.name] = each.number, each.group
            self._addresses[each.number] = each.address
            self._warming[each.name] = WarmingNode(cluster=part, workers=self._warm_up(part))
        for node in [name for name, one in self._warming.items() if one.is_ready()]:
            part = self._warming.pop(node).cluster
            devices = tuple(device.name for device in part.devices)
            self._pending.append(DevicesJoined(at_seconds=self.now(), devices=devices, cluster=part))

    def _warm_up(self, part: Cluster) -> list[WorkerHandle]:
        """Start workers on the devices of a node, which import what every order needs."""
        workers = [self._worker_for(((device.name,), 0)) for device in part.devices[:WARM_WORKERS]]
        for worker in workers:
            worker.send({"do": "import", "module": PRELOADED})
        return workers

    def _introduce_hosts(self) -> None:
        """Make hosts known to those that ask for others, whose idle cores their workers' feeds would borrow; a node
        that has none yet is given one."""
        for link in [link for link in self._links.values() if link.wants_peers and not link.lost]:
            nodes = [node for node, number in self._nodes.items() if not self._monitor.lost(number)]
            link.introduce({node: self._link(node) for node in nodes if node != link.node})

    def _send_heartbeats(self) -> None:
        for link in list(self._links.values()):
            link.keep_alive()

    def _take_answers(self, seconds: float) -> None:
        calls = {call: link for link in self._links.values() for call in link.calls()}
        if calls:
            for call in answered(self._ray, list(calls), seconds):
                calls[call].take(call)
        else:
            time.sleep(max(0.0, min(seconds, 0.1)))
        for link in self._links.values():
            link.check_silence()

    def _disconnect(self, worker: WorkerHandle) -> None:
        pass  # its host tells how it ended; whoever does not ask any more does not hear

    def _make_rendezvous(self, order: str, workers: list[WorkerHandle]) -> str:
        links = list({worker.link.node: worker.link for worker in workers if isinstance(worker, RemoteWorker)}.values())
        leader, *others = self._meetings[order] = links
        leader.post({"do": "make_rendezvous", "order": order, "is_alone": not others})
        for link in others:
            link.attend(order, leader)
        return ""  # the hosts know where

    def _remove_rendezvous(self, order: str) -> None:
        for link in self._meetings.pop(order, ()):
            link.post({"do": "remove_rendezvous", "order": order})
