"""How long whole steps, evaluations and saves of a training take with a technique, and what memory.

Takes real steps through a real session, nothing mocked, so the training that is handed in has moved on
afterwards: measure a training of its own. Knows sessions; knows nothing of engines or of when to measure.
"""

import contextlib
import dataclasses
import functools
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from dovetail.feeds.loaders import direct
from dovetail.profile.batch_structure import batch_bytes
from dovetail.profile.clocks import synchronize
from dovetail.profile.family_digest import shared_name, versions
from dovetail.profile.layers import Edges, Layers, measure_layers
from dovetail.profile.peak_memory import PeakMemory
from dovetail.train import checkpoint
from dovetail.train.base import SessionMember, StepReport, Technique, Training, TrainingSession
from dovetail.train.beside import BesideSession
from dovetail.train.graph import GraphSession
from dovetail.train.numeric import open_session
from dovetail.train.spill import SpillSession
from dovetail.train.state import TrainingState
from dovetail.vocabulary import FrozenDict, LayerProfile, Profile, ProgramError, TechniqueRefused

MOST_STEPS = 200
SAMPLE_BYTES = 1 << 30
STALLED_SECONDS, SMALL_BYTES = 0.1, 16 << 20
MOST_READ, READING_SECONDS = 20, 0.3
# Stretches of steps that are timed at least, unless they have taken so long together.
LEAST_STRETCHES, LONG_SECONDS = 5, 0.3
# Longer stretches follow one another until two agree so far, or so much time has passed: of a model with products in 8
# bits the one stretch of a trial said 0.158 s a step, where by hand steps took 0.129 s after the first six.
SETTLED, SETTLING_SECONDS = 0.05, 2.0
# What is handed over at once to find out how long the device works at it, how often, of steps no longer than this; and
# the clock by which it sleeps, about.
BUSY_STEPS, BUSY_TIMES, LONG_STEP_SECONDS, CYCLES_PER_SECOND = 4, 3, 0.1, 2e9
# First steps that take so much longer than the others compile something, which every placement will do again.
COMPILING_SECONDS = 5.0


def measure(
    technique: Technique,
    training: Training,
    *,
    seed: int,
    device: torch.device,
    threads: int,
    kind: str,
    count: int,
    family: str,
    build_seconds: float,
    scratch: Path,
    batch: Any = None,
    others: Sequence[Training] = (),
    layers: bool = False,
    knobs: Mapping[str, Any] = FrozenDict(),
    warmup_steps: int = 3,
    least_steps: int = 5,
    seconds: float = 0.2,
    most_seconds: float = 60.0,
    task_steps: int | None = None,
) -> Profile:
    """The profile of a training with a technique on one device kind and count.

    Steps are timed until there are `least_steps` and `seconds` of them, and at the latest after `most_seconds`,
    warm-up included, if at least one was timed. There are no more than `task_steps`: a schedule such as `OneCycleLR`
    raises beyond the steps that it was made for. `batch` is the first batch where the caller has it already;
    without, one is drawn. `others` are the rest of a gang, of the same family: a step is then one of all of them,
    and the profile's knobs say how many `members` there were. `scratch` is a directory on the disk that checkpoints
    go to. Raises what the session raises.

    >>> from dovetail.train.resident import RESIDENT
    >>> model = torch.nn.Linear(2, 1)
    >>> training = Training(model=model, batches=[torch.ones(4, 2)], loss=lambda model, batch: model(batch).mean(),
    ...                     optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    >>> with tempfile.TemporaryDirectory() as scratch:
    ...     profile = measure(RESIDENT, training, seed=0, device=torch.device("cpu"), threads=1, kind="cpu", count=1,
    ...                       family="f", build_seconds=0.0, scratch=Path(scratch), seconds=0.0)
    >>> profile.parameter_bytes, profile.batch_bytes, profile.metrics
    (12, 32, ('train/loss',))
    """
    batch = _first(training) if batch is None else batch
    with _kept_threads(threads):
        peak = PeakMemory(device)
        members = [SessionMember(training=one, seed=seed + number) for number, one in enumerate((training, *others))]
        with contextlib.closing(
            open_session(technique, members, device=device, threads=threads, knobs=knobs)
        ) as session:
            advance = functools.partial(session.advance, range(len(members)))
            timing = _steps(
                advance,
                device,
                max(warmup_steps, session.warmup_steps),
                least_steps,
                seconds,
                most_seconds,
                waited=lambda: sum(map(session.waited_seconds, range(len(members)))),
                task_steps=task_steps,
            )
            is_over = task_steps is not None and timing.steps + BUSY_TIMES * BUSY_STEPS > task_steps
            busy_seconds = 0.0 if is_over else _busy_seconds(session, advance, timing.step_seconds)
            if shortfall := next(filter(None, map(session.shortfall, range(len(members)))), ""):
                raise TechniqueRefused(shortfall)
            evaluate_seconds, evaluated = _time_call(session.evaluate, device)
            save_seconds, state = _save(session, scratch, device)
            peak.note_held()
            spilled = _read_spill_figures(session) if isinstance(session, SpillSession) else None
        peak_bytes = peak.bytes()
        found: tuple[Layers, Edges] = ((), ())
        if spilled is not None:
            found = spilled.layers, ()
        elif layers:
            found = measure_layers(training, batch, device=device)
    return Profile(
        family=family,
        kind=kind,
        count=count,
        step_seconds=timing.step_seconds,
        peak_bytes=peak_bytes,
        technique=technique.name,
        parameter_bytes=sum(parameter.nbytes for parameter in training.model.parameters()),
        optimizer_bytes=_optimizer_bytes(state),
        batch_bytes=batch_bytes(batch),
        steps_per_epoch=training.steps_per_epoch(),
        evaluate_seconds=evaluate_seconds if training.evaluate is not None else 0.0,
        evaluate_every=training.evaluate_every,
        build_seconds=build_seconds,
        compile_seconds=timing.compile_seconds,
        save_seconds=save_seconds,
        metrics=tuple(sorted({"train/loss", *(f"train/{name}" for name in timing.report.metrics), *evaluated})),
        layers=found[0],
        edges=found[1],
        versions=versions(training),
        knobs={**knobs, "members": len(members)} if others else knobs,
        host_bytes=spilled.host_bytes if spilled else 0,
        disk_bytes=spilled.disk_bytes if spilled else 0,
        accumulate=training.accumulate,
        clips=training.clip_norm is not None,
        precision=training.precision,
        timetable=training.timetable or "",
        shares=shared_name(training, batch),
        batch_seconds=_batch_seconds(training) if training.shares else 0.0,
        busy_seconds=busy_seconds,
        update_seconds=spilled.update_seconds if spilled else 0.0,
        waits_seconds=timing.waits_seconds,
    )


@dataclasses.dataclass(frozen=True)
class _SpillFigures:
    """What a spilled session knows of itself."""

    layers: Layers
    host_bytes: int
    disk_bytes: int
    update_seconds: float


def _read_spill_figures(session: SpillSession) -> _SpillFigures:
    """The segments of a spilled session as layers: the model as a whole may be on no device, so they are timed as they
    stream by."""
    timed, forecast = session.timed_segments(), session.forecast()
    segments = timed[0] if timed else ()
    sizes = {segment.name: sum(entry.master.nbytes for entry in segment.entries) for segment in session.segments}
    layers = tuple(
        LayerProfile(
            name=segment.name,
            operation="segment",
            forward_seconds=segment.forward_seconds,
            backward_seconds=segment.backward_seconds,
            parameter_bytes=sizes[segment.name],
        )
        for segment in segments
    )
    return _SpillFigures(layers, forecast.host_bytes, forecast.disk_bytes, session.update_seconds())


def _first(training: Training) -> Any:
    for batch in training.batches:
        return batch
    raise ProgramError("batches must give at least one each time they are iterated; they gave none.")


@contextlib.contextmanager
def _kept_threads(threads: int) -> Iterator[None]:
    # Sessions set the process's thread count and leave it so.
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _steps(
    advance: Callable[[], list[StepReport]],
    device: torch.device,
    warmup: int,
    least: int,
    seconds: float,
    most_seconds: float,
    *,
    waited: Callable[[], float],
    task_steps: int | None = None,
) -> "_Timing":
    begin = time.perf_counter()
    first: list[float] = []
    if task_steps is not None:
        warmup = min(warmup, task_steps - 1)
    while len(first) < warmup and time.perf_counter() - begin < most_seconds:
        first.append(_time_call(advance, device)[0])
    # Training does not wait for an accelerator after each step, so a trial does not either, unless steps are very long:
    # a spilled step of 1.05 s took 1.22 s with a wait at its end.
    together = least if device.type == "cuda" and least * min(first, default=0.0) < most_seconds / 3 else 1
    most = math.inf if task_steps is None else task_steps - len(first)
    together = int(min(together, most))
    timed: list[float] = []
    waited_before = waited()
    while not _is_enough(timed, together, least, seconds, late=time.perf_counter() - begin > most_seconds):
        if together * (len(timed) + 1) > most:
            break
        stretch_seconds, reports = _time_call(lambda: [advance() for _ in range(together)][-1], device)
        timed.append(stretch_seconds / together)
    # Two that agree say it; of three that do not, one may have a step that a technique looks at more closely.
    is_settled = together > 1 and len(timed) < LEAST_STRETCHES and _agree(timed)
    median = statistics.median(timed[-2:] if is_settled else timed)
    more = sum(first) - len(first) * median
    return _Timing(
        step_seconds=median,
        compile_seconds=more if more > COMPILING_SECONDS else 0.0,
        waits_seconds=(waited() - waited_before) / (together * len(timed)),
        report=reports[0],
        steps=len(first) + together * len(timed),
    )


@dataclasses.dataclass(frozen=True)
class _Timing:
    """The median seconds of a step, what the first steps took beyond that where they compiled something, for how long
    each waited for its batches in the mean, the last step's report, and how many steps were taken."""

    step_seconds: float
    compile_seconds: float
    waits_seconds: float
    report: StepReport
    steps: int


def _is_enough(timed: list[float], together: int, least: int, seconds: float, *, late: bool) -> bool:
    """Whether these stretches, each of so many steps `together`, tell what a step takes. Some steps are looked at more
    closely than the rest, so that of short stretches the median of several counts."""
    if not timed:
        return False
    steps, spent = together * len(timed), together * sum(timed)
    is_even = together == 1 or len(timed) >= LEAST_STRETCHES or (spent >= LONG_SECONDS and _has_settled(timed, spent))
    return late or steps >= MOST_STEPS or (steps >= least and spent >= seconds and is_even)


def _has_settled(timed: list[float], spent: float) -> bool:
    return spent >= SETTLING_SECONDS or _agree(timed)


def _agree(timed: list[float]) -> bool:
    return len(timed) > 1 and abs(timed[-1] - timed[-2]) <= SETTLED * timed[-1]


def _busy_seconds(session: TrainingSession, advance: Callable[[], list[StepReport]], step_seconds: float) -> float:
    """How long a step keeps the device at work that nobody keeps waiting: steps are handed over while it sleeps. Zero
    where a session does not only hand over, or takes so long that it matters to nobody."""
    if not isinstance(session, GraphSession | BesideSession) or not session.streams or step_seconds > LONG_STEP_SECONDS:
        return 0.0
    found = []
    for _ in range(BUSY_TIMES):
        begins, ends = ([torch.cuda.Event(enable_timing=True) for _ in session.streams] for _ in range(2))
        torch.cuda.synchronize()
        for stream, begin in zip(session.streams, begins, strict=True):
            with torch.cuda.stream(stream):
                torch.cuda._sleep(int(2 * BUSY_STEPS * step_seconds * CYCLES_PER_SECOND))
                begin.record(stream)
        for _ in range(BUSY_STEPS):
            advance()
        for stream, end in zip(session.streams, ends, strict=True):
            end.record(stream)
        torch.cuda.synchronize()
        found.append(max(float(begins[0].elapsed_time(end)) for end in ends) / 1e3 / BUSY_STEPS)
    return min(found)


def _time_call(action: Callable[[], Any], device: torch.device) -> tuple[float, Any]:
    synchronize(device)
    start = time.perf_counter()
    found = action()
    synchronize(device)
    return time.perf_counter() - start, found


def _batch_seconds(training: Training) -> float:
    """The median seconds that reading one batch takes."""
    timed: list[float] = []
    batches, began = iter(direct(training.batches)), time.perf_counter()
    while len(timed) < MOST_READ and time.perf_counter() - began < READING_SECONDS:
        start = time.perf_counter()
        try:
            next(batches)
        except StopIteration:
            break
        timed.append(time.perf_counter() - start)
    return statistics.median(timed) if timed else 0.0


def _save(session: TrainingSession, scratch: Path, device: torch.device) -> tuple[float, TrainingState]:
    """The seconds that one checkpoint takes, and the state that it holds. Of a large one only a part is written, and
    the rest is taken to go as fast: a trial must not fill the disk."""
    scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=scratch) as directory:
        state = session.state()
        sample, share = _sample(state)

        def write(attempt: int) -> float:
            return _time_call(
                lambda: checkpoint.write(Path(directory), sample, task="a trial", attempt=attempt), device
            )[0]

        seconds = write(1)
        # So few bytes take so long only while the disk is busy with others': once more.
        if share == 1.0 and seconds > STALLED_SECONDS and _bytes(state) < SMALL_BYTES:
            seconds = min(seconds, write(2))
        return seconds / share, state


def _bytes(state: TrainingState) -> int:
    return sum(tensor.nbytes for tensor in state.tensors.values())


def _sample(state: TrainingState) -> tuple[TrainingState, float]:
    """The first tensors of a state, up to `SAMPLE_BYTES`, and their share of its bytes."""
    total, taken = _bytes(state), 0
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in state.tensors.items():
        if taken >= SAMPLE_BYTES:
            break
        tensors[name] = tensor
        taken += tensor.nbytes
    return dataclasses.replace(state, tensors=tensors), taken / total if total else 1.0


def _optimizer_bytes(state: TrainingState) -> int:
    return sum(tensor.nbytes for name, tensor in state.tensors.items() if name.startswith("optimizer/"))
