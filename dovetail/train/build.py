"""From a task to its `Training`: load the program, seed, call it, look at what came."""

import contextlib
import contextvars
import dataclasses
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import torch

from dovetail.describe import check_parameters, check_source, load
from dovetail.feeds.generators import generators_in
from dovetail.feeds.loaders import draws_at_first
from dovetail.train.base import Training
from dovetail.train.isolation import Isolation
from dovetail.train.postponed_compiler import postpone_compiler
from dovetail.train.randomness import draw_again, reseed
from dovetail.vocabulary import DovetailError, ProgramError, Task

# What the trainings that a worker keeps may take of its host, all together: on a CPU it counts into what others are
# seen to take.
KEPT_BYTES = {"cpu": 64 << 20, "cuda": 1 << 30}
# What those of them that were trained may still hold, in cycles, until these are looked for: that takes 0.2 s, a fifth
# of a small task, so it is done for many small ones at once, and on an accelerator for each. Where nothing of them is
# left that can be told, it is done all the same after so many.
_TAKEN_BYTES, _TAKEN_COUNT = 16 << 20, 256
_STEPPED = 4  # times its weights: with gradients and two moments

# For whom a program is being built: the store's directory, and what undoes what earlier tasks did to the process.
_BUILDING: contextvars.ContextVar[tuple[Path | None, Isolation | None]] = contextvars.ContextVar("building")


def build(task: Task, *, home: Path | None = None, isolation: Isolation | None = None) -> Training:
    """What the task's program builds. Initial weights depend on the task's seed alone. With `isolation`, in a
    worker, what earlier tasks did to the process is undone first.

    Raises `ProgramError` or `InvalidWorkload`, naming the task.
    """
    postpone_compiler()
    with _naming(task):
        function, arguments = _load(task, home, isolation)
        reseed(task.seed, "build")
        outer = _BUILDING.set((home, isolation))
        try:
            training = function(**arguments)
        finally:
            _BUILDING.reset(outer)
    if not isinstance(training, Training):
        raise ProgramError(
            f"task {task.name!r}: its program must return a dovetail.Training, got {type(training).__name__}."
        )
    with _naming(task):
        training.check()  # fields may have been changed since it was made
    return training


def build_inner(task: Task) -> Training:
    """What another program builds, for one that is being built on top of it: from the same store, in this worker."""
    home, isolation = _BUILDING.get((None, None))
    return build(task, home=home, isolation=isolation)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Kept:
    training: Training
    threads: int
    bytes: int
    draw_again: Callable[[], None]
    """Puts the generators where building left them."""


class _Taken:
    """What may be left of a training that was kept and taken, and what it holds if it is."""

    def __init__(self, kept: _Kept) -> None:
        training = kept.training
        tensors = [*training.model.parameters(), *training.model.buffers()]
        weights = sum(tensor.nbytes for tensor in tensors if not torch.nn.parameter.is_lazy(tensor))
        self._bytes = max(kept.bytes, _STEPPED * weights)
        self._parts: list[weakref.ref[Any]] = []
        functions = (training.loss, training.step, training.evaluate)
        closures = [each for each in functions if getattr(each, "__closure__", None)]  # others are their modules'
        for part in (training, training.model, training.batches, *closures, *training.optimizers().values(), *tensors):
            with contextlib.suppress(TypeError):  # of a list there is no reference
                self._parts.append(weakref.ref(part))

    def held_bytes(self) -> int:
        """What it holds, nothing where all of it is gone."""
        return self._bytes if any(part() is not None for part in self._parts) else 0


class Builder:
    """Builds the tasks of a worker. A training that was only looked at is kept for the order that trains its task,
    where nothing can tell it from one that is built anew."""

    def __init__(self, *, home: Path | None = None, isolation: Isolation | None = None) -> None:
        self.isolation = isolation
        self._home = home
        self._kept: dict[str, _Kept] = {}
        self._taken: list[_Taken] = []  # since `forget_taken`

    @property
    def is_full_of_taken(self) -> bool:
        """Whether trainings that were kept and taken since `forget_taken` hold so much, in cycles that nobody has
        looked for, that it is time to look."""
        is_full = self._taken_bytes() > _TAKEN_BYTES or len(self._taken) > _TAKEN_COUNT
        return is_full or (bool(self._taken) and torch.cuda.is_initialized())

    def forget_taken(self) -> None:
        """Say that what was taken so far and is not in use any more has been freed."""
        self._taken.clear()

    def build(self, task: Task) -> Training:
        """Build the training of a task anew, from its program."""
        return build(task, home=self._home, isolation=self.isolation)

    @contextlib.contextmanager
    def inspecting(self, task: Task) -> Iterator[Training]:
        """Built anew, to be looked at and not trained within, and to have its first batch read at most."""
        before, on_device = _process_bytes(), _device_bytes()
        training = self.build(task)
        again = draw_again()
        yield training
        grown = max(0, _process_bytes() - before)
        unchanged = self.isolation is None or not self.isolation.undo()
        held = sum(kept.bytes for kept in self._kept.values()) + self._taken_bytes()
        room = KEPT_BYTES["cuda" if torch.cuda.is_initialized() else "cpu"] - held
        if unchanged and grown <= room and _device_bytes() == on_device and _is_untouched(training):
            self._kept[task.identity] = _Kept(
                training=training, threads=torch.get_num_threads(), bytes=grown, draw_again=again
            )

    def take(self, task: Task) -> Training:
        """To be trained: the one that `inspecting` gave where that was kept, else built anew."""
        kept = self._kept.pop(task.identity, None)
        if kept is not None:
            self._taken.append(_Taken(kept))
        if kept is None or kept.threads != torch.get_num_threads():  # some initial weights depend on threads
            return self.build(task)
        with _naming(task):
            _load(task, self._home, self.isolation)
        reseed(task.seed, "build")
        kept.draw_again()
        return kept.training

    def _taken_bytes(self) -> int:
        return sum(taken.held_bytes() for taken in self._taken)


def _load(task: Task, home: Path | None, isolation: Isolation | None) -> tuple[Callable[..., Any], dict[str, Any]]:
    check_source(task.program)
    place = task.program.reference.rpartition(":")[0]
    with isolation.loading(place) if isolation is not None else contextlib.nullcontext():
        function = load(task.program, home=home)
    return function, check_parameters(function, task.parameters, name=task.program.function)


@contextlib.contextmanager
def _naming(task: Task) -> Iterator[None]:
    """Let what is raised within name the task; what its program raises becomes a `ProgramError`."""
    try:
        yield
    except DovetailError as error:
        raise type(error)(f"task {task.name!r}: {error}") from error
    except MemoryError:
        raise
    except (Exception, SystemExit) as error:
        raise ProgramError(
            f"task {task.name!r}: its program must build a Training; it raised {type(error).__name__}: {error}."
        ) from error


def _is_untouched(training: Training) -> bool:
    """Whether reading a first batch cannot have changed a training: its batches have no code of the user's and no
    generator of their own."""
    return draws_at_first(training.batches) and next(generators_in(training.batches), None) is None


def _device_bytes() -> int:
    return torch.cuda.memory_allocated() if torch.cuda.is_initialized() else 0


def _process_bytes() -> int:
    return int(psutil.Process().memory_info().rss)
