"""Attacks on a store, its daemon and its pages: bits flipped in every file, poisoned submissions, planted links and
stores, secrets in every dress, rubbish from workers, kills. Each must be refused or survived, and said.

As root it acts as two users, and elsewhere leaves those attacks out with a word. Attacks are drawn from a seed, so that
one that breaks something can be had again.
`python bench/adversary.py [KIND ...] [--attacks N] [--seed 0] [--check] [--quick]`
"""

import argparse
import base64
import collections
import contextlib
import hashlib
import json
import os
import random
import re
import shutil
import signal
import socket
import stat
import string
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from commands import environment
from reporting import Bar, finish

from dovetail.control.daemon.commands import ask
from dovetail.engines.worker_messages import MessageReader, read_reported
from dovetail.store import Store, clear_scratch, holder
from dovetail.store.atomic_write import write_atomically
from dovetail.train import checkpoint
from dovetail.vocabulary import CheckpointError, DovetailError, to_json
from dovetail.vocabulary.redact import Redactor, masked
from dovetail.vocabulary.user_text import escape_controls

NOBODY = 65534
PROGRAM = """
import torch
from torch import nn
import dovetail as dt

def line(rate=0.1, note="", seed=0):
    model = nn.Linear(4, 1)
    batches = [torch.ones(8, 4) * n for n in range(5)]
    return dt.Training(
        model=model, batches=batches, loss=lambda model, batch: (model(batch) - 1).square().mean(),
        optimizer=torch.optim.SGD(model.parameters(), lr=rate * 1e-2),
    )

workload = dt.grid(line, rate=[0.1, 0.01], seed=[0, 1], steps=6)
"""
TORN = """
import os, sys
from pathlib import Path
from dovetail.store import Store
source, home = map(Path, sys.argv[1:])
with Store(source) as store:
    tasks, events = store.tasks(), [event for _, event in store.events()]
store = Store(home, write=True)
for pair in tasks:
    store.add(tasks=[pair])
for event in events:
    store.add(events=[event])
os._exit(9)
"""
Attack = Callable[[random.Random, "Ground"], str]
"""One attack; gives what broke, or nothing."""


class Ground:
    """What is attacked: a store as a run left it, one as a killed controller left it, and a daemon."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._made = 0
        (folder / "sweep.py").write_text(PROGRAM)
        self.finished = folder / "finished"
        self.command("run", str(folder / "sweep.py"), "--store", "finished")
        with Store(self.finished) as store:
            self.known = known(store)
            self.template = dict(to_json(store.tasks()[0][1]))
        self.checkpoints = sorted(each for each in (self.finished / "checkpoints").iterdir() if each.is_dir())
        self.states = {each.name: checkpoint.recover(each)[0] for each in self.checkpoints}
        self.torn, self.torn_known = self._tear()
        self.daemon: subprocess.Popen[str] | None = None
        self.accepted: set[str] = set()

    def command(self, *words: str, fails: bool = False) -> subprocess.CompletedProcess[str]:
        """A command of ours, to its end."""
        full = [sys.executable, "-m", "dovetail", *words]
        done = subprocess.run(full, cwd=self.folder, env=environment(), capture_output=True, text=True, check=False)
        if done.returncode and not fails:
            raise RuntimeError(f"{' '.join(words)}: {done.stdout}{done.stderr}")
        return done

    def _tear(self) -> tuple[Path, Any]:
        """A store whose writer was killed, so that much of it is in its log, and what it holds."""
        home = self.folder / "torn"
        subprocess.run([sys.executable, "-c", TORN, str(self.finished), str(home)], env=environment(), check=False)
        with Store(self.copy(home)) as store:
            return home, known(store)

    def copy(self, of: Path) -> Path:
        """A store to damage."""
        self._made += 1
        place = self.folder / f"copy-{self._made}"
        shutil.copytree(of, place, symlinks=True)
        return place

    @property
    def home(self) -> Path:
        """The daemon's store."""
        return self.folder / "daemon"

    def serve(self) -> None:
        """Start the daemon if it does not run, and wait until it answers."""
        if self.daemon is None or self.daemon.poll() is not None:
            words = [sys.executable, "-m", "dovetail", "daemon", "--store", "daemon", "--port", "0"]
            log = (self.folder / "daemon.log").open("a")
            self.daemon = subprocess.Popen(words, cwd=self.folder, env=environment(), stdout=log, stderr=log, text=True)
        due = time.monotonic() + 120
        while time.monotonic() < due:
            with contextlib.suppress(DovetailError):
                if "error" not in ask(self.home, {"do": "status"}):
                    return
            if self.daemon.poll() is not None:
                break
            time.sleep(0.05)
        raise RuntimeError(f"no daemon answers: {(self.folder / 'daemon.log').read_text()[-2000:]}")

    def close(self) -> None:
        """End the daemon."""
        if self.daemon is not None:
            self.daemon.kill()
            self.daemon.wait()


def known(store: Store) -> Any:
    """What a store holds, to be compared."""
    events = [(number, repr(event)) for number, event in store.events()]
    tasks = [(name, repr(task)) for name, task in store.tasks()]
    points = [repr(store.points(task.identity)) for _, task in store.tasks()]
    return events, tasks, points


# Tampering


def damage(file: Path, dice: random.Random) -> str:
    """Flip a bit, cut, lengthen, empty or remove a file; gives what was done."""
    content = bytearray(file.read_bytes())
    what = dice.choices(("flip", "cut", "zero", "remove", "append"), (12, 3, 2, 1, 1))[0]
    if what == "remove" or not content:
        file.unlink()
        return f"{file.name} removed"
    at = dice.randrange(len(content))
    if what == "flip":
        content[at] ^= 1 << dice.randrange(8)
    elif what == "cut":
        del content[at:]
    elif what == "zero":
        content[at : at + 512] = bytes(len(content[at : at + 512]))
    else:
        content += dice.randbytes(64)
    file.write_bytes(content)
    return f"{what} of {file.name} at {at}"


def tampered_store(dice: random.Random, ground: Ground) -> str:
    """What is damaged is said, or nothing was lost by it."""
    torn = dice.random() < 0.5
    home, expected = ground.copy(ground.torn if torn else ground.finished), ground.torn_known if torn else ground.known
    files = [each for each in home.iterdir() if each.is_file() and each.name != "lock"]
    done = damage(dice.choice(files), dice)
    write = dice.random() < 0.5
    try:
        with Store(home, write=write) as store:
            if not (store.fell_back or store.missing) and known(store) != expected:
                return f"{done}: another content, without a word"
    except DovetailError:
        return ""
    return ""


def tampered_checkpoint(dice: random.Random, ground: Ground) -> str:
    """A checkpoint is read as it was written, or not at all."""
    home = ground.copy(ground.finished)
    folder = dice.choice([home / "checkpoints" / each.name for each in ground.checkpoints])
    done = damage(dice.choice([each for each in folder.rglob("*") if each.is_file()]), dice)
    try:
        state, _ = checkpoint.recover(folder)
    except CheckpointError:
        return ""
    if state is None:
        return ""
    before = ground.states[folder.name]
    same = state.step != before.step or all(
        state.tensors[name].equal(tensor) for name, tensor in before.tensors.items()
    )
    return "" if same else f"{done}: read as if whole"


# Links and other users


def planted_link(dice: random.Random, ground: Ground) -> str:
    """What a link points to stays as it is, whoever planted the link."""
    home = ground.copy(ground.finished)
    victim = ground.folder / f"victim-{dice.random()}"
    victim.mkdir()
    (victim / "precious").write_text("mine")
    what = dice.choice(("scratch", "inside scratch", "page", "part"))
    with contextlib.suppress(DovetailError, OSError):
        if what == "scratch":
            shutil.rmtree(home / "scratch", ignore_errors=True)
            (home / "scratch").symlink_to(victim)
            clear_scratch(home)
        elif what == "inside scratch":
            (home / "scratch").mkdir(exist_ok=True)
            (home / "scratch" / "code-1").symlink_to(victim)
            clear_scratch(home)
        elif what == "page":
            (home / "report.html").symlink_to(victim / "precious")
            write_atomically(home / "report.html", b"page")
        else:
            write_with_links_around(home / "report.html", victim / "precious", dice)
    if not (victim / "precious").exists() or (victim / "precious").read_text() != "mine":
        return f"a link at {what}: what it points to is gone or changed"
    return ""


def write_with_links_around(path: Path, precious: Path, dice: random.Random) -> None:
    """Write where the names that a writer used to take lead elsewhere."""
    for name in (
        f".{hashlib.sha256(path.name.encode()).hexdigest()[:12]}.part",
        f".{path.name}.part",
        f"{path.name}.part",
        ".store.sqlite.last.part",
    ):
        with contextlib.suppress(FileExistsError):
            path.with_name(name).symlink_to(precious)
    write_atomically(path, dice.randbytes(10))


def odd_target(dice: random.Random, ground: Ground) -> str:
    """A file is written over a regular file or not at all."""
    folder = Path(tempfile.mkdtemp(dir=ground.folder))
    path, what = folder / "out", dice.choice(("fifo", "folder", "socket"))
    if what == "fifo":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    else:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(os.path.relpath(path))
    before = stat.S_IFMT(path.stat().st_mode)
    with contextlib.suppress(DovetailError, OSError):
        write_atomically(path, b"page")
    return "" if stat.S_IFMT(path.stat().st_mode) == before else f"a {what} was replaced"


def foreign_store(dice: random.Random, ground: Ground) -> str:
    """Another user's store is opened for writing by nobody but that user; nor one that others can write."""
    home = ground.copy(ground.finished)
    what = dice.choice(("owner", "folder's mode", "file's mode", "database's owner"))
    file = home / "store.sqlite"
    if what == "owner":
        for each in (home, *home.rglob("*")):
            os.chown(each, NOBODY, NOBODY, follow_symlinks=False)
    elif what == "database's owner":
        os.chown(file, NOBODY, NOBODY)
    elif what == "folder's mode":
        home.chmod(0o700 | dice.choice((0o020, 0o002, 0o022)))
    else:
        file.chmod(0o600 | dice.choice((0o020, 0o002)))
    try:
        with Store(home, write=True):
            return f"{what} is another's, and it was opened"
    except DovetailError:
        return ""


# Secrets

NAMES = ("password", "pwd", "auth", "dsn", "database_url", "jwt", "webhook", "token2", "api_key", "HF_TOKEN", "secret")
DRESSES: dict[str, Callable[[str], str]] = {
    "plain": str,
    "repr": repr,
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "url": lambda text: urllib.parse.quote(text, safe=""),
    "json": json.dumps,
    "hex": lambda text: text.encode().hex(),
}


def undressed_secret(dice: random.Random, ground: Ground) -> str:
    """A secret among parameters is in no text, in whatever dress."""
    name, dress = dice.choice(NAMES), dice.choice(sorted(DRESSES))
    alphabet = string.ascii_letters + string.digits + "-_/+=\"'\n\\é"
    secret = "".join(dice.choice(alphabet) for _ in range(dice.randrange(12, 40)))
    if name in ("dsn", "database_url"):
        secret = f"postgres://user:{secret.strip()}@host/db"
    text = f"task 7 said {DRESSES[dress](secret)} and went on"
    shown = Redactor([{name: secret}])(text)
    if DRESSES[dress](secret).strip("\"'") in shown or secret in json.dumps(masked({name: secret})):
        return f"{name} as {dress} was shown: {shown!r}"
    return ""


# The daemon


NESTED = "@nested@"


def line_of(request: dict[str, Any], dice: random.Random) -> bytes:
    """A request as it is sent: deeper nested than Python itself would write it, now and then cut, or no JSON."""
    text = json.dumps(request)
    for depth in re.findall(f'"{NESTED}([0-9]+){NESTED}"', text):
        opens, closes = dice.choice(("[]", ('{"a":', "}")))
        whole = opens * int(depth) + ("1" if closes == "}" else "") + closes * int(depth)
        text = text.replace(f'"{NESTED}{depth}{NESTED}"', whole, 1)
    line = text.encode()
    if dice.random() < 0.1:
        line = dice.choice(
            (line[: len(line) // 2], line + b"}", b"\xff" + line, b"[]", b"null", b"7", line.replace(b":", b"", 1))
        )
    return line + b"\n"


def send(ground: "Ground", line: bytes) -> dict[str, Any]:
    """What the daemon answers to a line."""
    found = holder(ground.home) or {}
    with socket.create_connection(("127.0.0.1", found["port"]), timeout=60) as channel:
        channel.sendall(f"{found['token']}\n".encode() + line)
        with channel.makefile("rb") as lines:
            answer = lines.readline()
    return dict(json.loads(answer)) if answer else {}


def value(dice: random.Random, depth: int = 0) -> Any:
    """Any JSON, and more of what is odd."""
    odd = [
        10**400,
        -(10**400),
        1e308,
        float("nan"),
        float("inf"),
        "\ud800",
        "\x1b]0;title\x07",
        "x" * 100_000,
        "",
        "../..",
        None,
    ]
    kind = dice.randrange(9 if depth < 6 else 5)
    if kind < 2:
        return dice.choice(odd)
    if kind == 2:
        return dice.randrange(-(2**70), 2**70)
    if kind == 3:
        return dice.choice(("line", "steps", "sweep.py:workload", "os:system", "lr=0.1*", "*"))
    if kind == 4:
        return dice.random() < 0.5
    if kind == 5:
        return f"{NESTED}{dice.choice((3, 100, 300, 485, 2000, 50_000))}{NESTED}"
    if kind < 8:
        return {str(value(dice, 6))[:50]: value(dice, depth + 1) for _ in range(dice.randrange(4))}
    return [value(dice, depth + 1) for _ in range(dice.randrange(4))]


VERBS = ("submit", "list", "pause", "resume", "cancel", "priority", "clone", "status", "what")
FIELDS = (
    "task",
    "tasks",
    "submission",
    "priority",
    "parameters",
    "warm",
    "name",
    "workload",
    "entity",
    "deadline_seconds",
)


def task_record(dice: random.Random, ground: Ground) -> dict[str, Any]:
    """A task as clients send it, with something in it that is odd."""
    record = dict(ground.template)
    spoilt = dice.choice((*record, "parameters", "steps", "nothing"))
    if spoilt == "steps":
        record["stop"] = {**record["stop"], "steps": dice.choice((10**400, -1, 0, 1e308, "1", None, [1]))}
    elif spoilt == "parameters":
        record["parameters"] = {"rate": 0.1, "note": value(dice), str(value(dice, 6))[:20]: value(dice)}
    elif spoilt != "nothing":
        record[spoilt] = value(dice)
    record["name"] = record["name"] if spoilt == "name" else f"t{dice.random()}"
    return record


def poisoned_request(dice: random.Random, ground: Ground) -> str:
    """Whatever is asked, there is an answer, and the daemon stays."""
    ground.serve()
    do = dice.choice(VERBS)
    request: dict[str, Any] = {"do": do}
    for field in FIELDS:
        if dice.random() < 0.4:
            request[field] = value(dice)
    if do == "submit" and dice.random() < 0.8:
        request["tasks"] = [task_record(dice, ground) for _ in range(dice.randrange(1, 3))]
        request["workload"] = "w"
    line = line_of(request, dice)
    answer = send(ground, line)
    if not answer:
        return f"no answer to {line[:300]!r}"
    for name in answer.get("tasks", ()) if do == "submit" and "done" in answer else ():
        ground.accepted.add(name)
    return alive(ground, f"after {line[:300]!r}")


def alive(ground: Ground, after: str) -> str:
    """Whether the daemon still answers."""
    try:
        said = ask(ground.home, {"do": "status"})
    except DovetailError as error:
        said = {"error": str(error)}
    if ground.daemon is not None and ground.daemon.poll() is not None:
        return f"the daemon ended {after}: {(ground.folder / 'daemon.log').read_text()[-1500:]}"
    return "" if "error" not in said else f"no answer {after}: {said['error']}"


def killed_daemon(dice: random.Random, ground: Ground) -> str:
    """What was acknowledged is there after a kill, and the daemon starts again."""
    ground.serve()
    assert ground.daemon is not None
    name = f"k{dice.random()}"
    record = {**ground.template, "name": name}
    answer = ask(ground.home, {"do": "submit", "tasks": [record], "workload": "w"})
    if "done" not in answer:
        return f"a plain submission was refused: {answer}"
    ground.accepted.add(name)
    time.sleep(dice.random() * 0.2)
    ground.daemon.send_signal(signal.SIGKILL)
    ground.daemon.wait()
    ground.serve()
    listed = {row["task"] for row in ask(ground.home, {"do": "list"})["tasks"]}
    lost = ground.accepted - listed
    return f"{len(lost)} of {len(ground.accepted)} acknowledged are gone, among them {sorted(lost)[:3]}" if lost else ""


def without_token(dice: random.Random, ground: Ground) -> str:
    """Who does not know the token gets nothing, and holds nobody up."""
    ground.serve()
    found = holder(ground.home)
    if not found or "port" not in found:
        return ""
    channels = []
    try:
        for _ in range(dice.choice((1, 8, 80))):
            channel = socket.create_connection(("127.0.0.1", found["port"]), timeout=5)
            channels.append(channel)
            with contextlib.suppress(OSError):
                channel.sendall(dice.choice((b"", b"{", b"x" * 5000, b'{"do": "list"}\n', b"\xff\xfe\n")))
        return alive(ground, f"beside {len(channels)} without a token")
    finally:
        for channel in channels:
            channel.close()


# Rubbish from workers, and texts


def rubbish(dice: random.Random, ground: Ground) -> str:
    """What a worker sends is a message, or its own loss: no other error."""
    message: dict[str, Any] = {"idle": 0.5, "doing": "a step"}
    for field in ("idle", "doing", "released", "seconds", "event", "notice"):
        if dice.random() < 0.5:
            message[field] = value(dice)
    if dice.random() < 0.5:
        names = ("kind", "task", "attempt", "at_seconds", "data")
        message["event"] = {name: value(dice) for name in names if dice.random() < 0.8}
        message["event"]["kind"] = dice.choice(("steps", "finished", "saved", "failed", "what", "submitted"))
    line = line_of(message, dice)[:-1]
    with contextlib.suppress(ValueError, RecursionError):
        for found in MessageReader().take(line + b"\n"):
            if isinstance(found.get("event"), dict):
                read_reported(found["event"], tasks=("t",))
    return ""


STEERING = ("\x1b]0;title\x07", "\x1b[2J", "\x1b[31m", "\r", "\x08" * 9, "\u202e", "\x9b2J", "\x00")


def steering_text(dice: random.Random, ground: Ground) -> str:
    """A text of others moves no cursor, however long it is, and is shown in few words."""
    parts = [dice.choice((*STEERING, "loss", "é", "\n", "[red]x[/red]")) for _ in range(dice.randrange(1, 30))]
    text = "".join(parts) * dice.choice((1, 1, 10, 100_000))
    shown = escape_controls(Redactor().excerpt(text))
    left = [each for each in shown if (ord(each) < 32 and each not in "\n\t") or each in "\x7f\x9b\u202e"]
    if left:
        return f"{left[:5]!r} reached the terminal of {text[:80]!r}"
    return "" if len(shown) < 50_000 else f"{len(text)} characters were shown as {len(shown)}"


KINDS: dict[str, tuple[Attack, int]] = {
    "tampered store": (tampered_store, 10),
    "tampered checkpoint": (tampered_checkpoint, 6),
    "planted link": (planted_link, 3),
    "odd target": (odd_target, 2),
    "foreign store": (foreign_store, 2),
    "secret": (undressed_secret, 6),
    "poisoned request": (poisoned_request, 12),
    "without token": (without_token, 1),
    "rubbish from a worker": (rubbish, 4),
    "steering text": (steering_text, 3),
    "killed daemon": (killed_daemon, 0),
}
"""Each kind of attack and how often it comes; a kill takes seconds, so that there are a few at the end."""
KILLS = 12


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    arguments.add_argument("--attacks", type=int, default=3500, metavar="N")
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--check", action="store_true", help="end with 1 where something broke")
    arguments.add_argument("--quick", action="store_true", help="40 attacks; writes nothing")
    chosen = arguments.parse_args()
    if unknown := set(chosen.kinds) - set(KINDS):
        arguments.error(f"KIND must be one of {', '.join(KINDS)}, got {', '.join(sorted(unknown))}")
    count = 40 if chosen.quick else chosen.attacks
    tried: collections.Counter[str] = collections.Counter()
    broken: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        ground = Ground(Path(folder))
        try:
            for number, name in enumerate(drawn(chosen.kinds or list(KINDS), count, chosen.seed, quick=chosen.quick)):
                said = tried_once(KINDS[name][0], random.Random(f"{chosen.seed}/{number}"), ground)
                tried[name] += 1
                if said:
                    broken[name] += 1
                    print(f"BROKEN {name}, attack {number}: {said}", flush=True)
                for left in Path(folder).glob("copy-*"):
                    shutil.rmtree(left, ignore_errors=True)
        finally:
            ground.close()
    rows = [
        {"attack": name, "tried": tried[name], "held": tried[name] - broken[name], "broken": broken[name]}
        for name in tried
    ]
    bars = [Bar("attacks that broke something", float(broken.total()), most=0.0)]
    bars += [] if chosen.kinds else [Bar("attacks tried", float(tried.total()), least=0.95 * count)]
    return finish("adversary", rows, bars, check=chosen.check, quick=chosen.quick or bool(chosen.kinds))


def drawn(kinds: list[str], count: int, seed: int, *, quick: bool) -> Iterator[str]:
    """The kinds of attack in the order in which they come."""
    dice = random.Random(seed)
    if os.geteuid() != 0 and "foreign store" in kinds:
        print("left out: foreign store, which needs two users and so root")
        kinds = [name for name in kinds if name != "foreign store"]
    weights = [KINDS[name][1] for name in kinds]
    if any(weights):
        yield from dice.choices(kinds, weights, k=count)
    if "killed daemon" in kinds:
        yield from ["killed daemon"] * (2 if quick else KILLS)


def tried_once(attack: Attack, dice: random.Random, ground: Ground) -> str:
    """What an attack broke; whatever it raises here is broken too."""
    try:
        return attack(dice, ground)
    except Exception:
        return traceback.format_exc(limit=-4)


if __name__ == "__main__":
    sys.exit(main())
