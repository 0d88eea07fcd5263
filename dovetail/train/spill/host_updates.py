"""Updates on the host, beside computing on the device.

A job waits until its segment's gradients have landed. Of those that have, the one whose segment the next forward needs
first is done first: taken in the order of arrival, which is the reverse, forward would wait for the whole queue.
Knows segments and optimizers; knows nothing of streams but marks.
"""

import atexit
import contextlib
import copy
import ctypes
import dataclasses
import functools
import heapq
import os
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from dovetail.train.spill import adamw_kernel, coded_adam_kernel
from dovetail.train.spill.lanes import Mark
from dovetail.train.spill.segments import Entry, LiveSegment

Groups = Sequence[Mapping[str, Any]]

# So many jobs are told that they come next.
_AHEAD = 2
# So many jobs may be told of out of order.
_SPANS = 8


def part(optimizer: torch.optim.Optimizer, segment: LiveSegment) -> torch.optim.Optimizer:
    """An optimizer like this one for the parameters of one segment, with a state of its own."""
    own = {entry.master for entry in segment.trainable}
    found = copy.copy(optimizer)
    found.__dict__.pop("step", None)  # a schedule puts a wrapper there that steps the optimizer it was made for
    found.param_groups = [
        {**group, "params": [parameter for parameter in group["params"] if parameter in own]}
        for group in optimizer.param_groups
    ]
    found.state = defaultdict(dict, {p: slots for p, slots in optimizer.state.items() if p in own})
    return found


@dataclasses.dataclass(eq=False, kw_only=True)
class Job:
    """The host's part of one segment's step, or, with `last=False`, only the adding up of a microbatch."""

    segment: LiveSegment
    optimizer: torch.optim.Optimizer
    landed: Mark | None
    present: Sequence[Entry]
    """The entries that have gradients."""
    groups: Groups
    """The optimizer's settings as they were when the step was taken."""
    round: int
    last: bool = True
    added_up: bool = False
    """Gradients are with the masters already."""
    scale: Callable[[], float] | None = None
    """What clipping multiplies gradients by."""
    expected: Callable[[LiveSegment, torch.optim.Optimizer], None] = lambda segment, optimizer: None
    """Called when it is among the next."""
    finished: Callable[[LiveSegment, torch.optim.Optimizer], None] = lambda segment, optimizer: None
    zeros: Callable[[torch.Tensor], torch.Tensor] = torch.zeros_like
    """Makes the state of a parameter that has none. All jobs of the first step land before any is done: what belongs on
    disk must be born there, or all of it is in memory at once."""
    disk_bytes: int = 0
    """What it reads from disk, and writes."""
    turn: int = 0
    is_expected: bool = False


_Run = Callable[[], tuple[float, float]]
"""Carries out a job; gives from when until when it was, which is less than the caller waits."""
_Landed = tuple[int, int, int, Job, _Run]


def _pool(threads: int, library: ctypes.CDLL | None) -> adamw_kernel.ThreadPool:
    """Threads for updates beside the two that launch kernels, forward's and autograd's, which keep cores of their own
    where there are any: without, computing four models took 1.1 s of a step instead of 0.7 (docs/log.md)."""
    count, cores = max(1, threads - 2), sorted(os.sched_getaffinity(0), reverse=True)
    return adamw_kernel.ThreadPool(count, cores[:count] if len(cores) > count else None, library=library)


@contextlib.contextmanager
def _blamed_on(job: Job) -> Iterator[None]:
    """Let an error say whose update it was."""
    try:
        yield
    except Exception as error:
        error.segment = job.segment  # type: ignore[attr-defined]
        raise


class HostUpdates:
    """Threads that carry out jobs. `submit`, `finish` and `drain` are called from the threads that train.

    The kernel has a thread pool; what torch does, one more thread does. Two threads hand jobs to the pool: while
    one's is carried out, the other chooses the next, late, and stands in line with it. One alone would have to come
    by Python's lock between two jobs, for which the threads that train let it wait, and the pool would idle as
    long.
    """

    def __init__(self, *, threads: int, use_kernel: bool) -> None:
        self._use_kernel = use_kernel and adamw_kernel.load() is not None
        self.changed = threading.Condition()
        """Notified when a segment's updates are done."""
        self._arriving: deque[Job] = deque()
        # What the kernel does, and what torch does.
        self._landed: list[_Landed] = []
        self._landed_for_torch: list[_Landed] = []
        self._count = 0
        self._closed, self._error = False, None
        self._busy_seconds, self._updated = 0.0, 0
        self._disk_seconds, self._disk_bytes = 0.0, 0
        self._spans: list[tuple[float, float]] = []
        self._busy_until = 0.0
        self._choosing = threading.Lock()
        # Of each kernel one, once it is needed: exact and coded moments are seldom updated side by side.
        self._pools: dict[Any, adamw_kernel.ThreadPool] = {}
        self._cores = threads
        self._threads = [threading.Thread(target=self._land, daemon=True)]
        queues = [self._landed_for_torch, *([self._landed] * 2 if self._use_kernel else [])]
        self._threads += [threading.Thread(target=self._work, args=(queue,), daemon=True) for queue in queues]
        for thread in self._threads:
            thread.start()
        atexit.register(self.close)  # a thread that ends with the process, inside of torch, takes it down

    _error: BaseException | None

    def submit(self, job: Job) -> None:
        """Carry out a job once its gradients have landed."""
        with self.changed:
            self._raise()
            job.turn = job.segment.submitted
            job.segment.submitted += 1
            self._arriving.append(job)
            self.changed.notify_all()

    def is_done(self, segment: LiveSegment) -> bool:
        """Whether nothing of this segment waits."""
        return segment.pending == 0

    @property
    def has_failed(self) -> bool:
        """Whether an update raised, which whoever waits next is told."""
        return self._error is not None

    def finish(self, segment: LiveSegment) -> None:
        """Block until this segment's updates are done."""
        if segment.pending:
            with self.changed:
                self.changed.wait_for(lambda: segment.pending == 0 or self._error is not None)
                self._raise()

    def drain(self, segments: Sequence[LiveSegment]) -> None:
        """Block until all updates of these segments are done."""
        for segment in segments:
            self.finish(segment)

    def rates(self) -> dict[str, float]:
        """How fast updates were while any went on, since `forget_rates`: parameters a second of those in memory, bytes
        a second, read and written, of those on disk."""
        with self.changed:
            self._settle_spans(0)
            found = {
                "update_parameters_per_second": (self._updated, self._busy_seconds),
                "disk_bytes_per_second": (2 * self._disk_bytes, self._disk_seconds),
            }
        return {name: count / seconds for name, (count, seconds) in found.items() if count and seconds}

    def forget_rates(self) -> None:
        """Measure the rates of updates and of the disk anew from now on."""
        with self.changed:
            self._busy_seconds, self._updated = 0.0, 0
            self._disk_seconds, self._disk_bytes = 0.0, 0
            self._spans.clear()
            self._busy_until = time.perf_counter()

    def close(self) -> None:
        """End the threads; what has not begun is dropped."""
        atexit.unregister(self.close)
        with self.changed:
            self._closed = True
            self.changed.notify_all()
        for thread in self._threads:
            thread.join()
        for pool in self._pools.values():
            pool.close()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _land(self) -> None:
        with self._failing():
            while True:
                with self.changed:
                    self.changed.wait_for(lambda: self._arriving or self._closed)
                    if self._closed:
                        return
                    job = self._arriving.popleft()
                assert job.landed is not None
                job.landed.synchronize()
                with self.changed:  # an earlier job may still be adding up what this one is to use
                    self.changed.wait_for(lambda: job.segment.done == job.turn or self._closed or self._error)  # noqa: B023
                by_kernel = self._use_kernel and job.last and _kernel_of(job.optimizer) is not None
                run = self._update_with_kernel(job) if by_kernel else functools.partial(_update_with_torch, job)
                with self.changed:
                    self._count += 1
                    landed = self._landed if by_kernel else self._landed_for_torch
                    heapq.heappush(landed, (job.round, job.segment.index, self._count, job, run))
                    self.changed.notify_all()
                self._expect_next()

    def _expect_next(self) -> None:
        """Tell the next jobs that they are, and no more of them: what is read ahead takes memory."""
        with self.changed:
            queues = (self._landed, self._landed_for_torch)
            next_ones = [job for queue in queues for *_, job, _ in heapq.nsmallest(_AHEAD, queue)]
            new = [job for job in next_ones if not job.is_expected]
            for job in new:
                job.is_expected = True
        for job in new:
            job.expected(job.segment, job.optimizer)

    def _work(self, landed: "list[_Landed]") -> None:
        choosing = self._choosing if landed is self._landed else contextlib.nullcontext()
        with self._failing():
            while True:
                with choosing:
                    for pool in list(self._pools.values()) if landed is self._landed else ():
                        pool.wait()
                    with self.changed:
                        self.changed.wait_for(lambda: landed or self._closed or self.has_failed)
                        if self._closed or self.has_failed:
                            return
                        *_, job, run = heapq.heappop(landed)
                    if job.disk_bytes:  # nobody chooses meanwhile: that would be in memory beside it
                        self._carry_out(job, run)
                if not job.disk_bytes:
                    self._carry_out(job, run)

    def _carry_out(self, job: Job, run: _Run) -> None:
        with _blamed_on(job):
            began, ended = run()
            job.finished(job.segment, job.optimizer)
            self._count_in(job, began, time.perf_counter() if job.disk_bytes else ended)  # that writes, too
        with self.changed:
            self._count_done(job)
        self._expect_next()

    def _count_done(self, job: Job) -> None:
        job.segment.done += 1
        self.changed.notify_all()

    @contextlib.contextmanager
    def _failing(self) -> Any:
        try:
            yield
        except BaseException as error:  # raised again in the thread that trains
            with self.changed:
                self._error = error
                self.changed.notify_all()

    def _count_in(self, job: Job, began: float, ended: float) -> None:
        """A job was carried out. One on disk takes the disk's time, which says nothing of the host's."""
        with self.changed:
            if job.disk_bytes:
                self._disk_seconds += ended - began
                self._disk_bytes += job.disk_bytes
                return
            heapq.heappush(self._spans, (began, ended))
            self._settle_spans(_SPANS)
            self._updated += sum(entry.master.numel() for entry in job.present) if job.last else 0

    def _settle_spans(self, left: int) -> None:
        """Add up the earliest spans, but for so many: torch's and the kernel's go on side by side, and who is told of
        its end first may have begun last."""
        while len(self._spans) > left:
            began, ended = heapq.heappop(self._spans)
            self._busy_seconds += max(0.0, ended - max(began, self._busy_until))
            self._busy_until = max(ended, self._busy_until)

    # What a job does

    def _update_with_kernel(self, job: Job) -> _Run:
        segment, scale = job.segment, job.scale() if job.scale else 1.0
        assert segment.travel is not None
        options = {
            parameter: group
            for group, mine in zip(job.groups, job.optimizer.param_groups, strict=True)
            for parameter in mine["params"]
        }
        kernel = _kernel_of(job.optimizer)
        assert kernel is not None
        stretches = [
            kernel.stretch_of(
                job.optimizer,
                entry.master.data,
                job.optimizer.state[entry.master],
                gradient=gradient,
                travel=entry.view(segment.travel) if entry.dtype != entry.master.dtype else None,
                options=options[entry.master],
                scale=scale,
                zeros=job.zeros,
            )
            for entry, gradient in _gradients(job)
            if entry.master in options  # what trains may be in nobody's optimizer
        ]
        if kernel not in self._pools:
            self._pools[kernel] = _pool(self._cores, kernel.load())
        return functools.partial(self._pools[kernel].update, stretches)


def _kernel_of(optimizer: torch.optim.Optimizer) -> Any:
    """The kernel that does what this optimizer does, or None: then torch does it."""
    kernels = (kernel for kernel in (adamw_kernel, coded_adam_kernel) if kernel.suits(optimizer))
    return next((kernel for kernel in kernels if kernel.load() is not None), None)


@torch.no_grad()
def _gradients(job: Job) -> Iterator[tuple[Entry, torch.Tensor]]:
    """The gradients of a step's last microbatch as they came, or the sums where there were more."""
    for entry in job.segment.trainable:
        if entry.master.grad is not None:
            if not job.added_up and entry in job.present:
                assert job.segment.gradients is not None
                add_up(entry.master, entry.view(job.segment.gradients))
            gradient, entry.master.grad = entry.master.grad, None
            yield entry, gradient  # the chunks hold on to it
        elif entry in job.present and not job.added_up:
            assert job.segment.gradients is not None
            yield entry, entry.view(job.segment.gradients)


@torch.no_grad()
def _update_with_torch(job: Job) -> tuple[float, float]:
    segment, began = job.segment, time.perf_counter()
    assert segment.travel is not None
    if not job.added_up:
        assert segment.gradients is not None
        for entry in job.present:
            add_up(entry.master, entry.view(segment.gradients))
    if job.last:
        step(job.optimizer, job.groups, job.scale() if job.scale else None)
        forget_gradients(segment)
        for entry in segment.trainable:
            if entry.dtype != entry.master.dtype:
                entry.view(segment.travel).copy_(entry.master)
    return began, time.perf_counter()


@torch.no_grad()
def step(optimizer: torch.optim.Optimizer, groups: Groups, scale: float | torch.Tensor | None) -> None:
    """One step of a segment's optimizer with the settings of its user's, and the gradients forgotten."""
    for mine, theirs in zip(optimizer.param_groups, groups, strict=True):
        mine.update(theirs)
        if scale is not None:
            for parameter in mine["params"]:
                if parameter.grad is not None:
                    parameter.grad.mul_(scale)
    optimizer.step()
    for mine in optimizer.param_groups:
        for parameter in mine["params"]:
            parameter.grad = None


def forget_gradients(segment: LiveSegment) -> None:
    """Also those of parameters that no optimizer has: they count to the norm of one step, not of all."""
    for entry in segment.trainable:
        entry.master.grad = None


def add_up(master: torch.nn.Parameter, gradient: torch.Tensor) -> None:
    """Add a gradient to its master's, in the precision that the master wants of gradients."""
    if master.grad is None:
        master.grad = gradient.to(master.grad_dtype, copy=True)
    else:
        master.grad.add_(gradient)
