"""A worker: a process that carries out orders one after another and reports what happens.

Started as `python -P -m dovetail.engines.worker FILE_DESCRIPTOR [CORE ...]`, with a socket to its engine on which both
sides write lines of JSON. It binds itself to its cores before torch is imported: some of the libraries below torch
decide then, once and for all, how many threads they use, and two threads on one core run four times slower than one.
It ends when the engine does: at the end of the socket, or by the kernel when its parent dies. Orders run on the main
thread; a second thread reads the socket, a third sends heartbeats.
"""

import concurrent.futures
import contextlib
import ctypes
import faulthandler
import functools
import gc
import importlib
import io
import json
import os
import queue
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from dovetail.engines.device_load import DeviceLoad
from dovetail.engines.imports import ImportTeller
from dovetail.vocabulary import Event, dumps, from_json
from dovetail.vocabulary.hardware import Kind
from dovetail.vocabulary.redact import Redactor
from dovetail.vocabulary.secret_forms import KEY_BEGINS
from dovetail.vocabulary.user_text import shorten

HEARTBEAT_SECONDS = 1.0
# Heartbeats take a thousandth of a core; what computes takes more than this share even on a crowded machine.
_BUSY_SHARE = 0.02
_TELLING_SECONDS = 0.2
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
PROCESS_NAME = "dovetail-worker"  # as `ps` and `top` show it
READY = "ready"  # what one does that has imported what it was asked to


class Idle:
    """For how long this process has neither begun another action nor computed. Asked once a heartbeat.

    >>> idle = Idle()
    >>> idle.begin(0), idle.seconds(1)
    (0.0, 0.0)
    """

    def __init__(self) -> None:
        self._seconds, self._moves = 0.0, 0
        self._looked, self._used = time.monotonic(), time.process_time()

    def begin(self, moves: int) -> float:
        """Start counting idle time anew from now."""
        self._look()
        self._seconds, self._moves = 0.0, moves
        return 0.0

    def seconds(self, moves: int) -> float:
        """How long it has been idle, given how many actions were begun so far."""
        elapsed, used = self._look()
        if moves != self._moves or used > _BUSY_SHARE * elapsed:
            self._seconds, self._moves = 0.0, moves
        else:  # a process that was stopped meanwhile, or a machine that slept, was not idle as long
            self._seconds += min(elapsed, 2 * HEARTBEAT_SECONDS)
        return self._seconds

    def _look(self) -> tuple[float, float]:
        now, used = time.monotonic(), time.process_time()
        found = now - self._looked, used - self._used
        self._looked, self._used = now, used
        return found


class TimeSpent:
    """The seconds of an order by what its worker was doing, in the first word of what it says of that.

    >>> spent = TimeSpent()
    >>> spent.begin()
    >>> spent.change("building")
    >>> spent.change("step 1")
    >>> list(spent.end())
    ['building', 'step']
    """

    def begin(self) -> None:
        """Start counting the phases of an order anew."""
        self._seconds: dict[str, float] = {}
        self._word, self._since = "", time.monotonic()
        self._waited = 0.0

    def __init__(self) -> None:
        self.begin()

    def change(self, action: str) -> None:
        """Count what is done from now on as something else."""
        now, word = time.monotonic(), action.partition(" ")[0]
        if self._word:
            self._seconds[self._word] = self._seconds.get(self._word, 0.0) + now - self._since
        self._word, self._since = word, now

    def wait(self, seconds: float) -> None:
        """So much of the time that steps took was waited for data."""
        self._waited += seconds

    def end(self) -> dict[str, float]:
        """What it was spent on; the time goes on."""
        self.change(self._word)
        found = dict(self._seconds)
        if waited := min(self._waited, found.get("step", 0.0)):
            found |= {"step": found["step"] - waited, "data": waited}
        return {word: round(seconds, 6) for word, seconds in found.items()}


class Worker:
    """The worker's side of the socket: reads orders, runs them, reports events and heartbeats."""

    def __init__(self, channel: socket.socket, *, redact: Redactor | None = None) -> None:
        self._channel, self._redact = channel, redact or Redactor(variables=os.environ)
        self._sending = threading.Lock()
        self._orders: queue.Queue[dict[str, Any]] = queue.Queue()
        self._stop_reason: str | None = None
        self._acknowledged: dict[str, int] = {}
        self._current = ""
        self._doing, self._computing, self._moves = "starting", False, 0
        self._noticed, self._beats = False, threading.Event()
        self._builder: Any = None
        self._spent = TimeSpent()
        self._saver: threading.Thread | None = None  # of the order before, while what it has learned is saved
        self._imported = threading.Event()  # what every order needs
        self._fetches: dict[str, concurrent.futures.Future[dict[str, Any]]] = {}

    def main(self) -> None:
        """Carry out orders until the engine says exit or goes away, which `_read` notices and ends the process."""
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._send_heartbeats, daemon=True).start()
        while True:
            self._obey(self._orders.get())

    def _obey(self, message: dict[str, Any]) -> None:
        match message["do"]:
            case "import":
                self._import(message["module"])
            case "configure":
                _configure(Path(message["log"]), message["paths"], message["variables"])
                # An earlier run's modules are forgotten, and so are its tasks, whose names may come again.
                self._builder = None
                self._acknowledged.clear()
                self._fetches = {}
            case "order":
                self._run(message)

    def _import(self, module: str) -> None:
        """Import a module that orders will probably need. An error is left to the order that imports it again."""
        with contextlib.suppress(BaseException):
            self._import_runner()
            importlib.import_module(module)
        self._set_action(READY)

    def _import_runner(self) -> None:
        """Import what every order needs, while heartbeats are sent already."""
        self._set_action("importing torch")
        import dovetail.engines.runner  # noqa: F401

        self._imported.set()

    def _run(self, message: dict[str, Any]) -> None:
        self._spent.begin()
        self._import_runner()
        import torch

        from dovetail.engines import runner
        from dovetail.engines.base import REMOTE_CORES, Order
        from dovetail.engines.worker_context import WorkerContext
        from dovetail.feeds.remote_cores import RemoteCores
        from dovetail.train.build import Builder
        from dovetail.train.isolation import Isolation
        from dovetail.train.ranks import Ranks

        self._set_action("reading the order")
        # What the imports made stays, and what is kept stays until it is taken; looking through it after each order
        # took 0.15 s, and 0.25 s once programs have imported transformers.
        gc.freeze()
        order = from_json(Order, message["order"])
        self._redact.learn((member.task.parameters for member in order.members), variables=os.environ)
        kind = from_json(Kind, message["kind"])
        home = Path(message["home"])
        # On a CPU the bits are the same each time as it is.
        deterministic = order.exact and kind.processor == "cuda"
        self._builder = self._builder or Builder(home=home, isolation=Isolation(deterministic=deterministic))
        self._builder.isolation.reset()
        torch.set_num_threads(message["threads"])
        if kind.processor == "cuda":
            torch.cuda.init()  # some of torch's own questions about a device fail before the first tensor on it
            limit_device_memory(torch, kind)
        load, saves = DeviceLoad(kind.processor), list[Callable[[], None]]()
        with writing_to_log(message.get("log"), is_shared=message.get("lane", 0) > 0), self._telling(order.purpose):
            runner.run(
                order,
                WorkerContext(
                    report=functools.partial(self._report, order=order.name),
                    stop_reason=lambda: self._stop_reason,
                    acknowledged_step=lambda task: self._acknowledged.get(task, 0),
                    device=torch.device(kind.processor, 0) if kind.processor == "cuda" else torch.device("cpu"),
                    kind=kind,
                    threads=message.get("session_threads", message["threads"]),
                    feed_cores=order.feed_cores,
                    home=home,
                    copies=Path(message.get("copies", home / "scratch" / "shards-copied")),
                    builder=self._builder,
                    ranks=Ranks(**message["ranks"]) if message["ranks"] else None,
                    save_beside=saves.append,
                    nearby=self._take_fetched,
                    doing=self._set_action,
                    waited=self._spent.wait,
                    redact=self._redact,
                    lane=message.get("lane", 0),
                    remote=RemoteCores(address) if (address := os.environ.get(REMOTE_CORES)) else None,
                ),
            )
        if self._builder.is_full_of_taken:
            gc.unfreeze()
            gc.collect()
            self._builder.forget_taken()
        self._builder.isolation.reset()  # before another run takes this worker over
        # Before the word that devices are free, so that a stop meant for this order never meets the next.
        self._stop_reason, self._current = None, ""
        busy = load.end()
        said: dict[str, Any] = {} if busy is None else {"busy": round(busy, 6)}
        said |= {"released": order.name, "seconds": self._spent.end(), "held": load.held_bytes}
        if saves:
            self._save_beside(saves, said)
        else:
            self._send(said)

    def _save_beside(self, saves: list[Callable[[], None]], released: dict[str, Any]) -> None:
        """Take the next order while a thread saves what this one learned; one at a time, since each holds a copy."""
        if self._saver is not None:
            self._saver.join()

        def save() -> None:
            try:
                for each in saves:
                    each()
            finally:  # an order without an end would be waited for
                self._send(released)

        self._send({"vacated": released["released"]})
        self._saver = threading.Thread(target=save, daemon=True)
        self._saver.start()

    def _fetch(self, directory: str) -> None:
        """Read the newest state of a task that comes next, so that it is here when it does. Of two tasks at most: the
        next one's is asked for before the one that begins has taken its own."""
        fetched: concurrent.futures.Future[dict[str, Any]] = concurrent.futures.Future()

        def fetch() -> None:
            # Two threads that import what imports each other fail, one or the other.
            self._imported.wait()
            try:
                from dovetail.store import folder_of
                from dovetail.train import checkpoint

                fetched.set_result(checkpoint.fetch(folder_of(directory)))
            except Exception as error:  # whoever asks for it reads it again, and says what is wrong
                fetched.set_exception(error)

        self._fetches = {**dict(list(self._fetches.items())[-1:]), directory: fetched}
        threading.Thread(target=fetch, daemon=True).start()

    def _take_fetched(self, directory: str) -> dict[str, Any]:
        fetched = self._fetches.pop(directory, None)
        with contextlib.suppress(Exception):
            return fetched.result() if fetched is not None else {}
        return {}

    @contextlib.contextmanager
    def _telling(self, purpose: str) -> Iterator[None]:
        """Within, the engine is told what is imported while tasks are built for the first time: other workers, which
        have nothing to do yet, import it meanwhile."""
        names, told_at = list[str](), time.monotonic()

        def tell(name: str) -> None:
            nonlocal told_at
            names.append(name)
            if time.monotonic() > told_at + _TELLING_SECONDS:  # an engine that is told of each does nothing else
                self._send({"imports": names})
                names.clear()
                told_at = time.monotonic()

        finder = ImportTeller(tell)
        if purpose == "fingerprint":
            sys.meta_path.insert(0, finder)
        try:
            yield
        finally:
            if finder in sys.meta_path:
                sys.meta_path.remove(finder)

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError), self._channel.makefile("r") as lines:
            for line in lines:
                message = json.loads(line)
                if message["do"] == "stop":
                    if message["name"] == self._current:
                        self._stop_reason = message["reason"]
                elif message["do"] == "acknowledge":
                    self._acknowledged[message["task"]] = message["step"]
                elif message["do"] == "fetch":
                    self._fetch(message["directory"])
                elif message["do"] == "exit":  # before whatever is still to be imported; nothing is left to save
                    break
                else:
                    if message["do"] == "order":
                        self._current = message["order"]["name"]
                    self._orders.put(message)
        # The engine says so, or is gone: whatever runs here has nobody to report to. torch's own teardown takes time.
        os._exit(0)

    def _send_heartbeats(self) -> None:
        idle = Idle()
        while True:
            # While only a step is computed, all that could be waited for without work is another rank.
            seconds = idle.seconds(self._moves) if self._computing else idle.begin(self._moves)
            self._send({"doing": self._doing, "notice": self._noticed, "idle": seconds})
            self._beats.wait(HEARTBEAT_SECONDS)
            self._beats.clear()

    def notice(self, number: int, frame: Any) -> None:
        """Signal handler: this process will be ended soon, as on a spot machine. The heartbeat's thread tells the
        engine, which asks for a save; a signal handler that waits for a lock may wait for itself."""
        self._noticed = True
        self._beats.set()

    def _set_action(self, action: str, *, computing: bool = False) -> None:
        self._doing, self._computing = action, computing
        self._moves += 1
        self._spent.change(action)

    def _report(self, event: Event, *, order: str) -> None:
        heading = {"kind": event.kind, "task": event.task, "attempt": event.attempt, "at_seconds": event.at_seconds}
        data = {key: shorten(value) if isinstance(value, str) else value for key, value in event.data().items()}
        self._send({"event": {**heading, "data": data}, "order": order})

    def _send(self, message: dict[str, Any]) -> None:
        line = dumps(message).encode() + b"\n"
        try:
            with self._sending:
                self._channel.sendall(line)
        except OSError:
            os._exit(0)


class Masking(io.TextIOBase):
    """A stream into a log that shows no secrets. One that comes in pieces, or from a library below Python, is not
    recognised, but for keys of several lines.

    >>> stream = Masking(io.StringIO(), Redactor(variables={"HF_TOKEN": "hf_12345"}))
    >>> stream.write("hello hf_12345") and stream.below.getvalue()
    'hello ***'
    """

    def __init__(self, below: Any, redact: Redactor) -> None:
        self.below, self._redact = below, redact
        self._in_key = False  # between the first and the last line of a key, printed line by line

    def write(self, text: str) -> int:
        """Write the text with its secrets masked."""
        shown = self._after_key(text) if self._in_key else text
        if "-----BEGIN " in shown and (found := list(re.finditer(KEY_BEGINS, shown))):
            self._in_key = "-----END " not in shown[found[-1].end() :]
        self.below.write(self._redact(shown))
        return len(text)

    def _after_key(self, text: str) -> str:
        """What is left of a text that came after the first line of a key: what stands behind its last, or all of it
        where it cannot be of a key."""
        _, end, rest = text.partition("-----END ")
        if end:
            self._in_key = False
            return rest.partition("-----")[2]
        self._in_key = re.fullmatch(r"[A-Za-z0-9+/=]*\s*|[A-Z][\w-]+: .*\s*", text) is not None
        return "" if self._in_key else text

    def flush(self) -> None:
        """Flush the stream below."""
        self.below.flush()

    def fileno(self) -> int:
        """The descriptor of the stream below; what is written there directly is not masked."""
        return int(self.below.fileno())

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of the stream below."""
        return str(self.below.encoding)


def limit_device_memory(torch: Any, kind: Kind) -> None:
    """Keep this process within the memory of a device that a user has limited, or let it have all of one that is not:
    an earlier order of this worker may have been limited."""
    whole = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, kind.memory_bytes / whole) if kind.limited else 1.0, 0)


@contextlib.contextmanager
def writing_to_log(log: str | None, *, is_shared: bool = False) -> Iterator[None]:
    """Write to the log of an order instead of the worker's, also what libraries below Python write; one to which
    nothing was written is removed, unless others write to it, too. A log that cannot be opened is no reason not to
    train."""
    try:
        opened = None if log is None else os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    except OSError:
        opened = None
    if opened is None:
        yield
        return
    before = [os.dup(1), os.dup(2)]
    _point_output(opened, opened)
    try:
        yield
    finally:
        _point_output(*before)
        for each in (opened, *before):
            os.close(each)
        with contextlib.suppress(OSError):
            if not is_shared and not os.path.getsize(str(log)):
                os.unlink(str(log))


def _point_output(out: int, err: int) -> None:
    for stream, source, descriptor in ((sys.stdout, out, 1), (sys.stderr, err, 2)):
        stream.flush()
        os.dup2(source, descriptor)


def _configure(log: Path, paths: list[str], variables: dict[str, str]) -> None:
    """Write to this log, and import as a worker does that was started with these paths and variables."""
    from dovetail.describe.programs import forget_modules

    opened = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    _point_output(opened, opened)
    os.close(opened)
    os.environ.update(variables)
    forget_modules()  # it may have served an earlier run; and a folder that was not there may be now
    sys.path[:] = [*paths, *(path for path in sys.path if path not in paths)]


def die_with_parent() -> None:
    """Have the kernel end this process when its parent ends."""
    # A parent that died before this line shows itself by the end of the socket. Its number says nothing: in a
    # container the engine itself may well be process 1.
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: Any) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value)


def _tell_endings() -> None:
    """Have whatever ends this process at once, a crash below Python or an `os._exit` of a program's own, leave in the
    log where that was: there is no exception that says so."""
    faulthandler.enable(file=2)
    exit_at_once, process = os._exit, os.getpid()

    def exit_and_tell(status: int) -> NoReturn:
        caller = str(sys._getframe(1).f_globals.get("__name__"))
        if os.getpid() == process and caller.partition(".")[0] != "dovetail":  # processes that it forks end so as well
            with contextlib.suppress(Exception):  # it may be the program's own, or closed
                sys.stdout.flush()
            faulthandler.dump_traceback(file=2, all_threads=False)
        exit_at_once(status)

    os._exit = exit_and_tell


def prepare() -> None:
    """Make this process one of a controller's."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the controller's to handle
    os.environ["DOVETAIL_WORKER"] = "1"


def serve(channel: socket.socket, cores: list[int]) -> None:
    """Carry out what comes on the channel, on these cores, or on any where none are given. Does not return."""
    redact = Redactor(variables=os.environ)
    sys.stdout, sys.stderr = Masking(sys.stdout, redact), Masking(sys.stderr, redact)
    _tell_endings()
    _prctl(_PR_SET_NAME, PROCESS_NAME.encode())
    if cores:
        os.sched_setaffinity(0, cores)
    worker = Worker(channel, redact=redact)
    signal.signal(signal.SIGTERM, worker.notice)
    worker.main()


def main() -> None:
    """Run a worker: the entry point of its process."""
    prepare()
    descriptor, *cores = map(int, sys.argv[1:])
    del sys.argv[1:]  # programs that read arguments have none here
    serve(socket.socket(fileno=descriptor), cores)


if __name__ == "__main__":
    main()
