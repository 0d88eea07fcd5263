"""From a task to its `Training`: load the program, seed, call it, look at what came."""

import contextlib
from pathlib import Path

from dovetail.describe import check_parameters, check_source, load
from dovetail.train.base import Training
from dovetail.train.isolation import Isolation
from dovetail.train.randomness import reseed
from dovetail.vocabulary import DovetailError, ProgramError, Task


def build(task: Task, *, home: Path | None = None, isolation: Isolation | None = None) -> Training:
    """What the task's program builds. Initial weights depend on the task's seed alone. With `isolation`, in a
    worker, what earlier tasks did to the process is undone first.

    Raises `ProgramError` or `InvalidWorkload`, naming the task.
    """
    try:
        check_source(task.program)
        place = task.program.reference.rpartition(":")[0]
        with isolation.loading(place) if isolation is not None else contextlib.nullcontext():
            function = load(task.program, home=home)
        arguments = check_parameters(function, task.parameters, name=task.program.function)
        reseed(task.seed, "build")
        training = function(**arguments)
    except DovetailError as error:
        raise type(error)(f"task {task.name!r}: {error}") from error
    except MemoryError:
        raise
    except (Exception, SystemExit) as error:
        raise ProgramError(
            f"task {task.name!r}: its program must build a Training; it raised {type(error).__name__}: {error}."
        ) from error
    if not isinstance(training, Training):
        raise ProgramError(
            f"task {task.name!r}: its program must return a dovetail.Training, got {type(training).__name__}."
        )
    try:
        training.check()  # fields may have been changed since it was made
    except DovetailError as error:
        raise type(error)(f"task {task.name!r}: {error}") from error
    return training
