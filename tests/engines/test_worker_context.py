"""What a worker adds to an option's knobs, and how it keeps within a device that a user has limited."""

import contextlib
import dataclasses
import os
from pathlib import Path

import pytest
import torch

import dovetail as dt
from dovetail.engines import MemberOrder, worker_context
from dovetail.engines.worker import limit_device_memory
from dovetail.engines.worker_context import WorkerContext, local_knobs, locate, reporting_failure
from dovetail.train import RESIDENT, SessionMember
from dovetail.train.build import Builder, build
from dovetail.vocabulary import Kind, Program, Stop, Task
from dovetail.vocabulary.events import AttemptLost, TaskFailed
from dovetail.vocabulary.redact import Redactor
from dovetail.vocabulary.user_text import MOST_CHARACTERS

WHOLE = Kind(name="h200", processor="cuda", memory_bytes=141 << 30)
LIMITED = Kind(name="h200-24GiB", processor="cuda", memory_bytes=24 << 30, limited=True)


def context(kind: Kind) -> WorkerContext:
    return WorkerContext(
        report=lambda event: None,
        stop_reason=lambda: None,
        acknowledged_step=lambda task: 0,
        device=torch.device("cpu"),
        kind=kind,
        threads=1,
        home=Path("home"),
        builder=Builder(),
    )


def test_spilling_on_a_limited_device_is_told_how_much_it_may_use():
    assert local_knobs("spill", {}, context(LIMITED))["device_bytes"] == 24 << 30
    assert "device_bytes" not in local_knobs("spill", {}, context(WHOLE))  # it looks how much is free
    assert local_knobs("spill", {"device_bytes": 8 << 30}, context(LIMITED))["device_bytes"] == 8 << 30
    assert local_knobs("resident", {}, context(LIMITED)) == {}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_limited_device_has_no_more_memory_than_it_was_limited_to():
    small = Kind(name="small", processor="cuda", memory_bytes=1 << 30, limited=True)
    limit_device_memory(torch, small)
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
    limit_device_memory(torch, Kind(name="all", processor="cuda", memory_bytes=0))
    assert torch.empty(2 << 30, dtype=torch.uint8, device="cuda").numel() == 2 << 30


def raising(number):
    return 1 // number


def test_where_an_error_was_raised_is_the_users_own_line():
    try:
        raising(0)
    except ZeroDivisionError as error:
        phase, where = locate(error)
    line = raising.__code__.co_firstlineno + 1
    assert (phase, where) == ("", f"tests/engines/test_worker_context.py:{line} in raising")


@pytest.mark.parametrize(("change", "phase"), [({"fail": "build"}, "building"), ({"fail": "loss"}, "training")])
def test_what_raised_is_told_from_the_way_it_came(change, phase, tmp_path):
    write_program(tmp_path)
    task = dt.task(f"{tmp_path}/broken.py:broken", name="broken", steps=3, **change)
    with pytest.raises(Exception) as raised, opened(task) as session:
        session.advance()
    found, where = locate(raised.value)
    assert found == phase
    assert where.startswith(f"{tmp_path}/broken.py:")
    assert where.endswith({"build": "in broken", "loss": "in loss"}[change["fail"]])


def test_an_evaluation_that_raised(tmp_path):
    write_program(tmp_path)
    task = dt.task(f"{tmp_path}/broken.py:broken", name="broken", steps=3, fail="evaluate")
    with opened(task) as session:
        session.advance()
        with pytest.raises(Exception) as raised:
            session.evaluate()
    assert locate(raised.value)[0] == "evaluation"
    assert locate(raised.value)[1].endswith("in evaluate")


def opened(task):
    members = [SessionMember(training=build(task), seed=0)]
    return contextlib.closing(RESIDENT.open(members, device=torch.device("cpu"), threads=1))


def write_program(folder):
    (folder / "broken.py").write_text(
        """
import torch
import dovetail as dt


def broken(fail):
    if fail == "build":
        raise LookupError("no data")
    model = torch.nn.Linear(2, 1)

    def loss(model, batch):
        if fail == "loss":
            raise LookupError("no batch")
        return model(batch).mean()

    def evaluate(model):
        raise LookupError("no score")

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return dt.Training(model=model, batches=[torch.ones(3, 2)], loss=loss, optimizer=optimizer, evaluate=evaluate)
"""
    )


def failure_of(error: Exception, redact: Redactor, lane: int = 0):
    told = []
    task = Task(name="a", program=Program(reference="a.py:f"), stop=Stop(steps=1))
    around = dataclasses.replace(context(WHOLE), report=told.append, redact=redact, lane=lane)
    with reporting_failure(MemberOrder(task=task, attempt=1), around):
        raise error
    (event,) = told
    return event


def test_an_error_of_many_megabytes_is_told_by_its_head_and_tail():
    event = failure_of(ValueError("first " + "x" * 20_000_000 + " last"), Redactor())
    for text in (event.reason, event.log):
        assert len(text) <= MOST_CHARACTERS
        assert "bytes left out" in text
        assert " last" in text
    assert "raised ValueError: first x" in event.reason
    assert "Traceback (most recent call last)" in event.log


def test_no_part_of_a_secret_is_left_where_an_error_is_cut():
    secret = "".join(f"{number:04}" for number in range(1000))
    event = failure_of(ValueError(f"{secret} {secret} {'x' * 20_000_000} {secret}"), Redactor([{"auth": secret}]))
    assert "0100" not in event.reason + event.log
    assert "0999" not in event.reason + event.log


def test_an_error_that_cannot_say_what_it_is_still_fails_its_task():
    class Mute(Exception):
        def __str__(self) -> str:
            raise LookupError

    assert "its own message raised LookupError" in failure_of(Mute(), Redactor()).reason


class Ended(BaseException):
    """In the place of this process's end."""


@pytest.mark.parametrize("lane", [0, 1])
def test_a_fault_on_a_device_that_others_share_is_nobodys_failure(lane, monkeypatch):
    """Whoever else computes there meets it, too, and each is tried again, alone in the end."""

    def end(code):
        raise Ended

    monkeypatch.setattr(os, "_exit", end)
    told = []
    monkeypatch.setattr(worker_context, "event_of", lambda kind, member, **fields: told.append((kind, fields)))
    error = torch.AcceleratorError("CUDA error: device-side assert triggered", 710)
    if lane:
        with pytest.raises(Ended):
            failure_of(error, Redactor(), lane=lane)
    else:
        failure_of(error, Redactor())
    ((kind, fields),) = told
    assert kind is (AttemptLost if lane else TaskFailed)
    assert "device-side assert" in fields["reason"]
