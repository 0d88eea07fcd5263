"""Jobs of one segment are done in the order they were given, whenever their gradients land."""

import subprocess
import sys
import threading
import time
from typing import Any

import pytest
import torch
from torch import nn

from dovetail.train.spill.host_updates import HostUpdates, Job, part
from dovetail.train.spill.segments import LiveSegment, cut
from tests.train.spill.towers import CPU


class Mark:
    """A moment that is past when told."""

    def __init__(self, *, is_past: bool) -> None:
        self._event = threading.Event()
        if is_past:
            self._event.set()

    def now(self) -> None:
        self._event.set()

    def synchronize(self) -> None:
        self._event.wait(10)

    def query(self) -> bool:
        return self._event.is_set()


def segment_of(model: nn.Module) -> LiveSegment:
    (found,) = cut(model, limit_bytes=1 << 20, fixed_bytes=0, precision="fp32", device=CPU)
    found.travel = torch.zeros(found.travel_bytes, dtype=torch.uint8)
    found.gradients = torch.zeros(found.gradient_bytes, dtype=torch.uint8)
    for entry in found.entries:
        entry.view(found.gradients).fill_(1.0)
    return found


def ends(action: Any, *, within: float) -> bool:
    """Whether this comes to an end."""
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    thread.join(within)
    return not thread.is_alive()


@pytest.mark.parametrize("use_kernel", [False, True])
def test_two_jobs_of_one_segment_given_at_once_are_both_done(use_kernel: bool) -> None:
    # As where a step holds its updates back and its last microbatch is still being added up.
    model = nn.Linear(2, 2)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    segment, updates = segment_of(model), HostUpdates(threads=2, use_kernel=use_kernel)
    optimizer = part(torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.0), segment)
    first = Mark(is_past=False)
    groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    common: dict[str, Any] = {
        "segment": segment,
        "optimizer": optimizer,
        "present": segment.trainable,
        "groups": groups,
    }
    updates.submit(Job(landed=first, round=0, last=False, **common))
    updates.submit(Job(landed=Mark(is_past=True), round=0, added_up=True, **common))
    first.now()
    done = ends(lambda: updates.finish(segment), within=5.0)
    updates.close()
    assert done
    for parameter, value in zip(model.parameters(), before, strict=True):
        assert torch.allclose(parameter, value - 0.1, atol=1e-6)


def jobs_of(model: nn.Module, *, zeros: Any = torch.zeros_like) -> list[Job]:
    """One job for each layer, whose gradients have landed."""
    segments = cut(model, limit_bytes=1, fixed_bytes=0, precision="fp32", device=CPU)
    whole, found = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.0), []
    for segment in segments:
        segment.travel = torch.zeros(segment.travel_bytes, dtype=torch.uint8)
        segment.gradients = torch.zeros(segment.gradient_bytes, dtype=torch.uint8)
        for entry in segment.entries:
            entry.view(segment.gradients).fill_(1.0)
        optimizer = part(whole, segment)
        groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
        found.append(
            Job(
                segment=segment,
                optimizer=optimizer,
                landed=Mark(is_past=True),
                present=segment.trainable,
                groups=groups,
                round=0,
                zeros=zeros,
            )
        )
    return found


def test_jobs_that_stand_in_line_are_each_done_once_while_python_is_busy() -> None:
    model = nn.Sequential(*(nn.Linear(width, 300) for width in (300,) * 12))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    jobs, updates = jobs_of(model), HostUpdates(threads=3, use_kernel=True)
    done: list[int] = []
    for job in jobs:
        job.finished = lambda segment, optimizer: done.append(segment.index)
        updates.submit(job)
    ends_at = time.monotonic() + 0.3
    while time.monotonic() < ends_at:  # holds the interpreter's lock as long as it may
        pass
    finished = ends(lambda: updates.drain([job.segment for job in jobs]), within=20.0)
    rates = updates.rates()
    updates.close()
    assert finished
    assert sorted(done) == list(range(12))
    assert rates["update_parameters_per_second"] > 0
    for parameter, value in zip(model.parameters(), before, strict=True):
        assert torch.allclose(parameter, value - 0.1, atol=1e-6)


def test_after_a_job_that_failed_none_is_done_and_all_can_be_closed() -> None:
    jobs, updates = (
        jobs_of(nn.Sequential(*(nn.Linear(2, 2) for _ in range(6)))),
        HostUpdates(threads=3, use_kernel=True),
    )

    def fail(segment: LiveSegment, optimizer: torch.optim.Optimizer) -> None:
        raise ArithmeticError("this one fails")

    jobs[0].finished = fail
    updates.submit(jobs[0])
    with pytest.raises(ArithmeticError, match="this one fails"):
        updates.finish(jobs[0].segment)
    with pytest.raises(ArithmeticError, match="this one fails"):
        updates.submit(jobs[1])
    assert ends(updates.close, within=10.0)


def test_a_process_may_end_with_updates_under_way() -> None:
    # Nobody closes what an exception leaves behind.
    code = (
        "import threading; from tests.train.spill.towers import *\n"
        "class Slow(torch.optim.SGD):\n"
        "    def step(self, closure=None):\n"
        "        large = torch.ones(1500, 1500)\n"
        "        if threading.current_thread() is not threading.main_thread(): large @ large\n"
        "session = spilled(lambda: training(Tower(), optimizer=lambda p: Slow(p, lr=0.1)))\n"
        "session.advance()\n"
        "print('done', flush=True)\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert found.stdout == "done\n"
    assert found.returncode == 0, found.stderr
