"""What an order needs of the worker it runs in, and how failures are turned into events. Knows no sockets."""

import contextlib
import dataclasses
import os
import time
import traceback
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from dovetail.describe.installed import is_installed
from dovetail.engines.base import MemberOrder
from dovetail.feeds.remote_cores import RemoteCores
from dovetail.planning.techniques import spec_of
from dovetail.train.base import Training
from dovetail.train.build import Builder
from dovetail.train.ranks import Ranks, is_of_others
from dovetail.vocabulary import DovetailError, Event, Kind, Task, TechniqueRefused
from dovetail.vocabulary.event_base import E
from dovetail.vocabulary.events import AttemptLost, TaskFailed
from dovetail.vocabulary.redact import Redactor

# As much of a reason may be the error's own words: what stands around them must have room.
_REASON_CHARACTERS = 3000
_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")


@dataclasses.dataclass(kw_only=True)
class WorkerContext:
    """What a runner is given by its worker: where to report, whether to stop, and the device it runs on."""

    report: Callable[[Event], None]
    stop_reason: Callable[[], str | None]
    acknowledged_step: Callable[[str], int]
    device: torch.device
    kind: Kind
    threads: int
    home: Path
    builder: Builder
    ranks: Ranks | None = None
    """This process among those that carry out the order together, one a device; None where there is only this one."""
    copies: Path | None = None
    """Where on this node shards of data are copied to that are read from afar; None: nowhere."""
    save_beside: Callable[[Callable[[], None]], None] = lambda save: save()
    """Called at most once, as the last thing, with what saves a visit and reports its end: done while the device has
    the next order already, or at once."""
    nearby: Callable[[str], Mapping[str, Any]] = lambda directory: {}
    """Called with a task's directory: the states that were fetched before they were asked for, by their paths."""
    doing: Callable[..., None] = lambda action, **how: None
    """Called with what is under way in a few words, and `computing=True` while being idle means a stall."""
    waited: Callable[[float], None] = lambda seconds: None
    """Called with how many seconds of the steps so far, not told before, were waited for data."""
    feed_cores: int = 0
    """How many of the node's cores the members' feeds have; 0: as many as this process may use."""
    lane: int = 0
    """Of several workers on one device each has a lane, from 1 on; 0: this one has its device for itself."""
    remote: RemoteCores | None = None
    """Where its feeds may borrow idle cores of other nodes; None where there are none."""
    redact: Redactor = dataclasses.field(default_factory=Redactor)
    """Masks secrets in what programs say, before any of it is cut."""


def local_knobs(technique: str, knobs: Mapping[str, Any], around: WorkerContext) -> dict[str, Any]:
    """An option's knobs with what only the worker knows: where on its disk a session may put what it moves there, and
    how much of a device that a user has limited it may use, which the device itself does not tell. Where its ranks
    are is no session's business."""
    found = {name: value for name, value in knobs.items() if name not in ("nodes", "row")}
    if around.kind.limited and "device_bytes" in spec_of(technique).knobs:
        found.setdefault("device_bytes", around.kind.memory_bytes)
    if "disk_directory" in spec_of(technique).knobs:
        found.setdefault("disk_directory", str(around.home / "scratch"))
    return found


def event_of(kind: type[E], member: MemberOrder, **fields: Any) -> E:
    """An event of an order's member that happens now."""
    return kind(task=member.task.identity, attempt=member.attempt, at_seconds=time.time(), **fields)


def build_in_gang(task: Task, builder: Builder, *, take: bool = False) -> Training:
    """What a program builds that trains in one process with others: one that has changed variables of its modules or
    settings of torch is refused, since its neighbours would find them so, or it would not find them itself."""
    training = builder.take(task) if take else builder.build(task)
    changed = builder.isolation.put_back() if builder.isolation is not None else []
    if changed:
        raise TechniqueRefused(
            f"a program that trains in one process with others must leave its modules and torch's settings as they "
            f"are; it changes {', '.join(changed[:3])}. Train it alone, or keep what all share in a functools.cache"
        )
    return training


@contextlib.contextmanager
def reporting_failure(
    member: MemberOrder, around: WorkerContext, *, gang: Sequence[MemberOrder] = ()
) -> Iterator[None]:
    """Report whatever is raised within as this member's `failed` event. The rest of `gang`, which cannot go on without
    it, is reported lost. Where a session raises `error.member`, that member failed instead."""
    try:
        yield
    except (Exception, SystemExit) as error:  # what a program exits from is its task, not the worker of many
        if around.ranks is not None and is_of_others(error):
            reason = f"another rank is gone: {_innermost(error)}"
            for each in gang or (member,):
                around.report(event_of(AttemptLost, each, reason=reason, of_others=True))
            return
        if around.lane and _is_of_device(error):
            reason = f"a fault on the device, which ends all processes that share it: {_innermost(error)}"
            around.report(event_of(AttemptLost, member, reason=around.redact.excerpt(reason)))
            os._exit(1)  # nothing more can be computed here
        if gang:
            member = gang[getattr(error, "member", gang.index(member))]
        around.report(_failure(member, error, around.redact))
        reason = f"task {member.task.name!r}, with which it ran together, failed"
        for other in gang:
            if other is not member:
                around.report(event_of(AttemptLost, other, reason=reason))


def _is_of_device(error: BaseException) -> bool:
    """Whether a device has come to a fault that it cannot go on after, such as an index out of bounds."""
    return isinstance(_innermost(error), torch.AcceleratorError) and not is_out_of_memory(error)


def _innermost(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _failure(member: MemberOrder, error: BaseException, redact: Redactor) -> TaskFailed:
    said, cause = redact.excerpt(_text(error), most=_REASON_CHARACTERS), "program"
    reason = said
    if is_out_of_memory(error):
        cause = "memory"
        reason = (
            f"task {member.task.name!r} must fit on its device; it ran out of memory: {said}. "
            f"Use a smaller batch with accumulate, or a device with more memory."
        )
    elif isinstance(error, TechniqueRefused):
        cause = "refused"
    elif not isinstance(error, DovetailError):
        reason = f"task {member.task.name!r} raised {type(error).__name__}: {said}"
    phase, where = locate(error)
    if where:
        reason = f"{reason.rstrip()} ({phase}, {where})" if phase else f"{reason.rstrip()} ({where})"
    log = redact.excerpt("".join(traceback.format_exception(error)))
    smallest = getattr(error, "is_smallest", False)
    return event_of(TaskFailed, member, reason=reason, cause=cause, smallest=smallest, phase=phase, log=log)


def _text(error: BaseException) -> str:
    """What an error says; one that cannot say it says that."""
    try:
        return str(error)
    except Exception as other:
        return f"(its own message raised {type(other).__name__})"


def locate(error: BaseException) -> tuple[str, str]:
    """What of a task was under way when this was raised (`building`, `training` or `evaluation`), and the file, line
    and function of the user's own code in which that happened; each empty where nothing tells.

    >>> locate(ValueError("raised nowhere"))
    ('', '')
    """
    phase = where = ""
    for frame, line in _frames(error):
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if file.startswith(_PACKAGE):
            phase = _phase(file.removeprefix(_PACKAGE), name) or phase
        elif not is_installed(file) and not file.startswith("<frozen"):
            where = f"{_relative(file)}:{line} in {name}"
    return phase, where


def _frames(error: BaseException) -> Iterator[tuple[types.FrameType, int]]:
    """The frames through which an error came, outermost first; those of its cause, which lie deeper, follow."""
    found: BaseException | None = error
    while found is not None:
        yield from traceback.walk_tb(found.__traceback__)
        found = found.__cause__


def _phase(file: str, function: str) -> str:
    """What is done by a function of Dovetail that calls the user's code."""
    if function in ("evaluate", "_evaluate"):
        return "evaluation"
    if file == os.path.join("train", "build.py"):
        return "building"
    return "training" if function in ("advance", "fingerprint", "measure_option") else ""


def _relative(file: str) -> str:
    """As a user would name it from the folder in which the command was given."""
    return os.path.relpath(file) if file.startswith(os.path.join(os.getcwd(), "")) else file


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device or this machine ran out of memory.

    >>> is_out_of_memory(torch.OutOfMemoryError("no room")), is_out_of_memory(RuntimeError("no batch"))
    (True, False)
    """
    # On a CPU torch says so in words only.
    words = "DefaultCPUAllocator: can't allocate memory"
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or words in _text(_innermost(error))
