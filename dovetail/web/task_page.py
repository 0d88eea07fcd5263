"""One task as its own page shows it: what happened to it, how it ran and how else it could have, what it waits for,
what it printed, what it was made of."""

import ast
import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dovetail.engines.base import order_log
from dovetail.metrics.progress import ENDED, Progress
from dovetail.planning import derive_options
from dovetail.store import Store, checkpoints_of
from dovetail.vocabulary import Cluster, DovetailError, Event, Option, Profile, Task, TaskId, loads, to_json
from dovetail.vocabulary.approximations import KNOB
from dovetail.vocabulary.events import CheckpointSaved, DevicesReleased
from dovetail.vocabulary.units import show_seconds, show_some
from dovetail.web.plain_data import plain_number, plain_seconds, plain_value
from dovetail.web.reading import StoreReading
from dovetail.web.snapshot import last_step

MOST_EVENTS, MOST_LOADS = 400, 5_000
_LOG_BYTES = 64 << 10
_LOG_LINES = 300
_SOURCE_BYTES = 1 << 20
# What is said of an event beside its kind and its time; the rest of it is for machines.
_SAID = ("reason", "message", "step", "until", "before", "after", "priority", "metric", "value", "path", "asked_by")


def task_of(reading: StoreReading, store: Store, identity: str, *, now: float, source: bool = True) -> dict[str, Any]:
    """Everything on record of one task; its `source` too, where whoever looks may read the user's files."""
    task = TaskId(identity)
    if task not in reading.tasks:
        raise DovetailError(f"a task must be one of those in the store; there is no {identity!r}.")
    events = [event for _, event in store.events(task=task)]
    described = store.tasks(identity=task)[-1][1]
    one = reading.progress.get(task) or Progress(task=task)
    options, rejected = _options(reading, store, task, one)
    return {
        "id": task,
        "parameters": {
            key: plain_value(value) for key, value in reading.redact.parameters(described.parameters).items()
        },
        "program": reading.redact(described.program.reference),
        "digest": described.program.source,
        "stop": reading.redact(str(described.stop)),
        "begins_with": described.begins_with,
        "source": reading.redact(_source(described)) if source else "",
        "events": [_event(reading, event) for event in events[-MOST_EVENTS:]],
        "events_total": len(events),
        "checkpoints": _checkpoints(store, task, events),
        "options": options,
        "rejected": rejected,
        "waits": waits_for(reading, task, now=now),
        "log": log_of(reading, store, task),
    }


def log_of(reading: StoreReading, store: Store, task: TaskId) -> str:
    """The end of what a task's last attempt has printed."""
    one = reading.progress.get(task)
    if store.home is None or one is None or not one.spans:
        return ""
    with contextlib.suppress(OSError), open(order_log(store.home / "logs", one.spans[-1].placement), "rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - _LOG_BYTES))
        text = reading.redact(file.read().decode(errors="replace"))
        return "\n".join(text.splitlines()[-_LOG_LINES:])
    return ""


def waits_for(reading: StoreReading, task: TaskId, *, now: float) -> str:
    """Why a task does not run, as far as the store says; nothing where it runs or has ended."""
    one = reading.progress.get(task)
    if one is None or one.fingerprint is None:
        return "It is new: its program is to be built and measured first." if one is None or not one.spans else ""
    if one.status in (*ENDED, "running"):
        return ""
    if one.status == "paused":
        return f"It was paused by a user at step {one.step:,}, and goes on once it is resumed."
    if one.status == "resting":
        return f"It is at a rung, step {one.step:,}, until the others have reached it."
    if one.retry_at_seconds > now:
        return f"It was lost ({one.reason}) and is tried again in {show_seconds(one.retry_at_seconds - now)}."
    running = [
        other for other in reading.progress.values() if other.status == "running" and other.task in reading.tasks
    ]
    names = show_some([reading.tasks[other.task].name for other in running])
    devices = {device for other in running for device in other.spans[-1].devices}
    if not running:
        return "No controller has placed it yet; nothing runs now."
    return f"{len(devices)} of {len(reading.devices)} devices are taken by {names}."


def _event(reading: StoreReading, event: Event) -> list[Any]:
    """When, what, in which attempt, and what is to be said of it."""
    found = []
    for name in _SAID:
        if (value := getattr(event, name, None)) not in (None, "", 0):
            found.append(
                f"{name.replace('_', ' ')}: {reading.redact(str(value))}"
                if name not in ("reason", "message")
                else reading.redact(str(value))
            )
    log = reading.redact(str(getattr(event, "log", "")))
    devices = ", ".join(getattr(event, "devices", ()))
    said = "; ".join(([f"on {devices}"] if devices else []) + found)
    return [plain_seconds(event.at_seconds), event.kind, event.attempt, said, log]


def _checkpoints(store: Store, task: TaskId, events: list[Event]) -> list[dict[str, Any]]:
    """Those that were saved, the newest first, whether each is still there, and which is kept as the best."""
    saved = [event for event in events if isinstance(event, CheckpointSaved)]
    best = saved[-1].best_step if saved else None
    present = _present(store, task)
    return [
        {
            "step": event.step,
            "at": plain_seconds(event.at_seconds),
            "bytes": event.bytes,
            "best": event.step == best,
            "kept": event.path.rpartition("/")[2] in present if present is not None else None,
        }
        for event in reversed(saved[-MOST_EVENTS:])
    ]


def _present(store: Store, task: TaskId) -> set[str] | None:
    """The names of the checkpoints that are there; None where they are not on this machine."""
    if store.home is None:
        return None
    folder = checkpoints_of(store.home) / task
    try:
        return {path.name for path in folder.iterdir()} if isinstance(folder, Path) else None
    except OSError:
        return set()


def _options(
    reading: StoreReading, store: Store, task: TaskId, one: Progress
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What the task could run as, the one that it last ran as marked, each with what it would take from its first step
    to its last; and what does not fit. From what was measured of its family, by the way that planners go."""
    cluster = reading.cluster
    if one.fingerprint is None or cluster is None:
        return [], []
    family = one.fingerprint.family
    members = sum(
        each.fingerprint is not None and each.fingerprint.family == family for each in reading.progress.values()
    )
    profiles = list(_profiles(store, family))
    ways = {approximate for each in profiles if (approximate := each.knobs.get(KNOB))}
    fitting, rejected = derive_options(profiles, cluster, members={family: members}, allowed={family: ways})
    steps = last_step(reading, task) or 1
    prices = {kind.name: kind.price_per_hour for kind in cluster.kinds}
    used = reading.options.get((task, one.spans[-1].placement)) if one.spans else None
    shown = [_option(option, steps, prices) for option in fitting]
    for each in shown:
        is_used = used is not None and (each["technique"], each["kind"], each["count"]) == (
            used.technique, used.kind, used.count,
        )  # fmt: skip
        each["chosen"] = is_used
    shown.sort(key=lambda each: (not each["chosen"], each["seconds"]))
    return shown, [_rejection_row(reading, each) for each in rejected]


def _profiles(store: Store, family: str) -> Iterator[Profile]:
    for _, name, _, _, _, record in store.rows("profiles"):
        if name == family:
            with contextlib.suppress(ValueError):
                yield loads(Profile, record)


def _option(option: Option, steps: int, prices: Mapping[str, float]) -> dict[str, Any]:
    gang = len(option.families)
    seconds = option.seconds((steps,) * gang)
    return {
        "technique": option.technique,
        "kind": option.kind,
        "count": option.count,
        "gang": gang,
        "knobs": json.dumps(to_json(option.knobs)) if option.knobs else "",
        "step_seconds": plain_number(max(option.step_seconds)),
        "seconds": plain_number(seconds),
        "device_seconds": plain_number(seconds * option.count / gang),
        "spend": plain_number(seconds / 3600 * option.count / gang * prices.get(option.kind, 0.0)),
        "device_bytes": option.device_bytes,
        "host_bytes": option.host_bytes,
        "measured": option.measured,
    }


def _rejection_row(reading: StoreReading, each: Any) -> dict[str, Any]:
    return {
        "technique": each.technique,
        "kind": each.kind,
        "count": each.count,
        "reason": reading.redact(each.reason),
        "needed": each.needed_bytes,
        "free": each.free_bytes,
    }


def _source(task: Task) -> str:
    """The text of the function that builds the task, as its file has it now; nothing where that cannot be read."""
    place, _, function = task.program.reference.rpartition(":")
    with contextlib.suppress(OSError, ValueError, SyntaxError, RecursionError):
        path = Path(place)
        if path.suffix == ".py" and path.is_file() and path.stat().st_size <= _SOURCE_BYTES:
            text = path.read_text()
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.FunctionDef) and node.name == function:
                    return ast.get_source_segment(text, node) or ""
    return ""


def cluster_of(reading: StoreReading) -> dict[str, Any]:
    """Nodes, kinds and links, as they were found or measured."""
    cluster = reading.cluster or Cluster(kinds=(), nodes=(), devices=())
    return {
        "kinds": [
            {
                "name": kind.name,
                "count": count,
                "memory": kind.memory_bytes,
                "flops": kind.matrix_flops_per_second,
                "memory_rate": kind.memory_bytes_per_second,
                "price": kind.price_per_hour,
            }
            for kind, count in cluster.counts()
        ],
        "nodes": [{"name": node.name, "cores": node.cores, "memory": node.memory_bytes} for node in cluster.nodes],
        "links": [
            {
                "source": link.source,
                "target": link.target,
                "rate": link.bytes_per_second,
                "latency": link.latency_seconds,
            }
            for link in cluster.links
        ],
        "loads": [_load(each) for each in list(reading.released)[-MOST_LOADS:] if each.devices],
    }


def _load(released: DevicesReleased) -> list[Any]:
    """What an order's devices did: which, from when to when, the share of that in which they computed, and held."""
    seconds = released.duration_seconds * len(released.devices)
    share = None if released.busy_seconds is None or not seconds else min(1.0, released.busy_seconds / seconds)
    end = released.at_seconds
    start = plain_seconds(end - released.duration_seconds)
    return [list(released.devices), start, plain_seconds(end), plain_number(share), released.held_bytes]
