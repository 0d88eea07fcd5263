"""The workers of one node: what the Ray actor on it does.

They are the worker processes of the engine `local`, started and listened to in the same way; between them and the
engine, which is on another machine, this relays lines of JSON. Both ways are numbered and kept until the other side
has them, because a call that failed may have been carried out: nothing is lost or taken twice. It ends, and with it
its workers, when nobody called `keep_alive` for `patience_seconds`: then there is no engine to report to. Cores that no
order has it lends to feeds on other nodes, whose hosts call, and its own workers' feeds borrow through it. Knows
nothing of Ray: its methods are called, each from a thread of its own.
"""

import collections
import json
import os
import queue
import selectors
import shutil
import socket
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy

import dovetail
from dovetail.engines.base import REMOTE_CORES
from dovetail.engines.detection import available_cores
from dovetail.engines.private_folder import PrivateFolder
from dovetail.engines.processes import WorkerProcess
from dovetail.engines.ray.core_borrowing import CoreBorrower
from dovetail.engines.ray.core_lending import CoreLender, Passed
from dovetail.engines.ray.meetings import Meetings, interface_of
from dovetail.engines.ray.shipped_code import Shipment, import_from, take
from dovetail.vocabulary import Cluster, dumps, from_json

# How long a pull waits for something to be said.
PULL_SECONDS = 1.0


class Host:
    """Holds a node's workers. `given` is JSON: the cluster, this node's name in it, the store's directory, a folder
    there that is seen only where that is shared, the controller's environment, and how long to wait for it. `code` is
    where the shipment lies; by default where this Dovetail came from."""

    def __init__(self, given: bytes, code: Path | None = None) -> None:
        said = json.loads(given)
        self._cluster, self._home = from_json(Cluster, said["cluster"]), Path(said["home"])
        for name, value in said["environment"].items():
            os.environ.setdefault(name, value)  # what a node sets itself (PATH, HOME) is its own
        # Where the directory is not shared, this is one of the node's own, and what is printed there is passed on.
        self._is_shared = Path(said["mark"]).is_dir()
        (self._home / "logs").mkdir(parents=True, exist_ok=True, mode=0o700)
        code = code or Path(dovetail.__file__).parents[1]
        self._folder = PrivateFolder("host-")
        self._shipment = Shipment(take(code, inside=self._folder.path))
        os.chdir(self._shipment.folder)  # where workers begin, and find Dovetail first
        import_from(self._shipment.folder, instead_of=code)  # others may write where Ray has put it
        self._patience_seconds, self._told_at = said["patience_seconds"], time.monotonic()
        self._inbox: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._received, self._said = 0, 0
        self._outbox: collections.deque[tuple[int, dict[str, Any]]] = collections.deque()
        self._spoken = threading.Condition()
        self._workers: dict[int, WorkerProcess] = {}
        self._folders: dict[str, str] = {}  # where the ranks of an order meet that are all here
        self._selector = selectors.DefaultSelector()
        self._node, self._address = said.get("node", ""), said.get("address", "")
        self._devices = tuple(device for device in self._cluster.devices if device.node == self._node)
        self._lender = CoreLender(self._idle_cores, code=self._shipment.folder)
        self._borrower: CoreBorrower | None = None
        self._meetings = Meetings(self._folder.path)  # nodes may join with which ranks here are to meet
        if interface := interface_of(self._address):
            for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
                os.environ.setdefault(variable, interface)  # where ranks on other nodes reach those here
        if len(self._cluster.nodes) > 1:  # else there is nobody to borrow from
            self._borrower = CoreBorrower(
                self._folder.path, code=self._shipment.folder, wish=lambda: self._say({"wants_peers": True})
            )
        self._bell, ear = socket.socketpair()
        self._selector.register(ear, selectors.EVENT_READ, None)
        # Workers are started by this one thread: the kernel ends them when the thread that started them ends.
        threading.Thread(target=self._run, daemon=True).start()

    def keep_alive(self) -> None:
        """Take note that the engine is there. A controller that plans does not `pull`, so this is a call of its own."""
        self._told_at = time.monotonic()

    def pull(self, have: int) -> bytes:
        """The messages after number `have` and this node's clock, as JSON; waits a moment for the first message.

        Each message has its time by that clock, so a worker's silence is right whenever the engine asks.
        """
        with self._spoken:
            while self._outbox and self._outbox[0][0] <= have:
                self._outbox.popleft()
            self._spoken.wait_for(lambda: self._outbox, timeout=PULL_SECONDS)
            return dumps({"clock": time.monotonic(), "messages": list(self._outbox)}).encode()

    def introduce(self, hosts: Mapping[str, Any]) -> None:
        """Know the hosts of other nodes, whose idle cores the feeds of workers here may borrow."""
        if self._borrower is not None:
            self._borrower.introduce(hosts)

    def attend(self, order: str, leader: Any) -> None:
        """Have the ranks of an order that are here meet at the host of another node."""
        self._meetings.begin(order, leader=leader)

    def meet(self, order: str, word: str, key: str, value: bytes) -> bytes | None:
        """What a rank of another node says to those of its order that meet here, or asks. See `Meetings`."""
        return self._meetings.answer(order, word, key, value)

    def idle_cores(self) -> int:
        """How many cores a feed of another node could borrow now."""
        return self._lender.idle_cores()

    def lend_core(self, path: list[str], code: str, pickled: bytes) -> tuple[int, str]:
        """Lend a core: a number for it, or 0. See `CoreLender`, also for what follows."""
        return self._lender.lend(path, code, pickled)

    def send_to_core(self, number: int, message: bytes, buffers: list[Any]) -> bool:
        """Pass a message on to the process on a core that is lent."""
        return self._lender.send(number, message, buffers)

    def receive_from_core(self, number: int) -> Passed | None:
        """Wait for the next message of the process on a core that is lent."""
        return self._lender.receive(number)

    def release_core(self, number: int) -> None:
        """Take a core back that is not wanted any more."""
        self._lender.release(number)

    def echo(self, size: int) -> Passed:
        """A message of this size, as a batch would come from here: it measures the link."""
        return b"", [numpy.zeros(size, dtype=numpy.uint8)]

    def _idle_cores(self) -> list[int]:
        """The cores that no order has. Of a node with accelerators, whose orders use any of its cores, all or none."""
        busy = {device for worker in list(self._workers.values()) if worker.order for device in worker.devices}
        if any(self._cluster.kind(device.kind).processor != "cpu" for device in self._devices):
            return [] if busy else available_cores()
        return [device.index for device in self._devices if device.name not in busy]

    def post(self, messages: bytes) -> None:
        """Take numbered messages, as JSON; those that came before are passed over."""
        for number, message in json.loads(messages):
            if number > self._received:
                self._received = number
                self._inbox.put(message)
        self._bell.send(b"!")

    def _run(self) -> None:
        try:
            self._serve()
        except Exception:  # a host that hears no more must not look alive
            traceback.print_exc()
        self._folder.close()
        os._exit(1)  # and the workers with it

    def _serve(self) -> None:
        while time.monotonic() - self._told_at < self._patience_seconds:
            for key, _ in self._selector.select(1.0):
                if key.data is None:
                    key.fileobj.recv(1 << 10)  # type: ignore[union-attr]
                    while not self._inbox.empty():
                        self._obey(self._inbox.get())
                elif key.data in self._workers:
                    self._hear(key.data)

    def _obey(self, message: dict[str, Any]) -> None:
        number, what = message.get("worker", 0), message["do"]
        worker = self._workers.get(number)
        if what == "start":
            self._start(number, tuple(message["devices"]))
        elif what == "make_rendezvous":
            self._make_rendezvous(message["order"], is_alone=message["is_alone"])
        elif what == "remove_rendezvous":
            shutil.rmtree(self._folders.pop(message["order"], ""), ignore_errors=True)
            self._meetings.end(message["order"])
        elif worker is None:
            return  # it has ended, which the engine will have heard by now
        elif what == "kill":
            worker.kill(message["why"])
        elif what == "begin":
            order = message["message"]
            self._shipment.relocate(order["order"])
            order["copies"] = str(self._folder.path / "shards")  # on a disk of this node
            if order["ranks"]:
                where = {"node": self._node, "address": self._address} if self._address else {}
                order["ranks"] |= {"rendezvous": self._rendezvous(message["order"]), **where}
            worker.begin(message["order"], order)
            self._lender.reclaim()
        else:
            worker.send(message["message"])

    def _make_rendezvous(self, order: str, *, is_alone: bool) -> None:
        """Where the ranks of an order meet: in a file where all of them are here, and else at this host."""
        if is_alone:
            # With the code that came here: on this node's own disk.
            self._folders[order] = tempfile.mkdtemp(prefix="meeting-", dir=self._shipment.folder)
        else:
            self._meetings.begin(order)

    def _rendezvous(self, order: str) -> str:
        if (folder := self._folders.get(order)) is not None:
            return f"file://{folder}/meeting"
        return f"meeting:{self._meetings.address}#{order}"

    def _start(self, number: int, devices: tuple[str, ...]) -> None:
        log = self._home / "logs" / f"worker-{'-'.join(devices).replace(':', '-')}.log"
        try:
            address = self._borrower.address if self._borrower is not None else ""
            variables = {REMOTE_CORES: address} if address else {}
            worker = self._workers[number] = WorkerProcess(devices, cluster=self._cluster, log=log, variables=variables)
        except OSError as error:
            self._say({"worker": number, "gone": {"reason": f"its worker could not be started: {error}"}})
            return
        self._selector.register(worker.channel, selectors.EVENT_READ, number)
        self._say({"worker": number, "process": worker.process.pid})

    def _hear(self, number: int) -> None:
        worker = self._workers[number]
        found = worker.receive()
        self._pass_on_printed(number)
        if found is not None:
            freed = {line.get(word) for line in found for word in ("released", "vacated")}
            worker.order = "" if worker.order in freed else worker.order
            self._say({"worker": number, "lines": found})
            return
        self._selector.unregister(worker.channel)
        worker.channel.close()
        if not worker.exited(10):
            worker.kill("it closed its socket")
            worker.exited(10)
        del self._workers[number]
        gone = {"reason": worker.reason(), "ending": worker.ending(), "log": worker.log_tail()}
        self._say({"worker": number, "gone": gone})

    def _pass_on_printed(self, number: int) -> None:
        """Say what the order of a worker has printed, before what else is said of it."""
        while not self._is_shared and (printed := self._workers[number].read_printed())[1]:
            start, text = printed[0], printed[1].decode(errors="surrogateescape")
            self._say({"worker": number, "printed": {"start": start, "text": text}})

    def _say(self, message: dict[str, Any]) -> None:
        with self._spoken:
            self._said += 1
            self._outbox.append((self._said, {**message, "at": time.monotonic()}))
            self._spoken.notify_all()
