"""What a worker does to its process before an order."""

import io
import socket
from types import SimpleNamespace

import pytest
import torch

from dovetail.engines import worker
from dovetail.engines.worker import limit_device_memory
from dovetail.train import checkpoint
from dovetail.train.build import Builder
from dovetail.train.isolation import Isolation
from dovetail.train.state import TrainingState
from dovetail.vocabulary import Kind
from dovetail.vocabulary.events import Warned
from dovetail.vocabulary.redact import Redactor
from tests.vocabulary.test_secret_forms import KEY

WHOLE = Kind(name="h200", processor="cuda", memory_bytes=140 << 30)


def torch_of(total_bytes: int, asked: list[tuple[float, int]]) -> SimpleNamespace:
    cuda = SimpleNamespace(
        get_device_properties=lambda device: SimpleNamespace(total_memory=total_bytes),
        set_per_process_memory_fraction=lambda fraction, device: asked.append((fraction, device)),
    )
    return SimpleNamespace(cuda=cuda)


@pytest.mark.parametrize(
    ("kind", "asked"),
    [
        (WHOLE, [(1.0, 0)]),
        (Kind(name="h200-24GiB", processor="cuda", memory_bytes=24 << 30, limited=True), [(24 / 144, 0)]),
        (Kind(name="h200-999GiB", processor="cuda", memory_bytes=999 << 30, limited=True), [(1.0, 0)]),
    ],
)
def test_a_process_keeps_within_the_memory_of_a_limited_device(kind, asked):
    found: list[tuple[float, int]] = []
    limit_device_memory(torch_of(144 << 30, found), kind)
    assert found == asked


def test_what_steps_waited_for_data_is_taken_from_what_they_took():
    spent = worker.TimeSpent()
    spent.change("step 1")
    spent.wait(1e-9)
    spent.change("saving")
    found = spent.end()
    assert set(found) == {"step", "data", "saving"}
    spent.begin()
    spent.change("saving")
    spent.wait(5.0)  # nobody takes steps
    assert set(spent.end()) == {"saving"}


def test_a_worker_that_served_an_earlier_run_keeps_nothing_of_it(monkeypatch):
    configured = []
    monkeypatch.setattr(worker, "_configure", lambda *given: configured.append(given))
    here, there = socket.socketpair()
    with here, there:
        served = worker.Worker(here)
        served._acknowledged["task"] = 7
        served._builder = Builder(isolation=Isolation())
        served._obey({"do": "configure", "log": "worker.log", "paths": [], "variables": {}})
    assert len(configured) == 1
    assert served._acknowledged == {}
    assert served._builder is None


def test_a_log_shows_no_secret_whatever_it_is_called_and_however_it_is_written():
    below = io.StringIO()
    stream = worker.Masking(below, Redactor([{"dsn": "hunter22"}], variables={"TEAM_JWT": "swordfish"}))
    print("hunter22", repr("hunter22"), "aHVudGVyMjI=", "swordfish", "ghp_0123456789abcdef", file=stream)
    assert below.getvalue() == "*** '***' ***= *** ***\n"


def test_a_key_that_is_printed_line_by_line_is_masked_and_what_follows_is_not():
    below = io.StringIO()
    stream = worker.Masking(below, Redactor())
    for line in [*KEY.splitlines(), "loss 0.5", KEY.splitlines()[0], "loss: 0.25 of a key that was cut off"]:
        print(line, file=stream)
    found = below.getvalue()
    assert "MIIE" not in found
    assert "AASC" not in found
    assert "loss 0.5\n" in found
    assert "loss: 0.25 of a key that was cut off\n" in found


def test_no_message_to_the_engine_has_more_of_a_text_than_can_be_shown():
    here, there = socket.socketpair()
    with here, there:
        worker.Worker(here)._report(Warned(at_seconds=1.0, message="m" * 20_000_000), order="o")
        there.settimeout(10)
        assert len(there.recv(1 << 20)) < 10_000


def test_what_comes_next_is_fetched_before_its_turn_and_taken_once(tmp_path):
    state = TrainingState(step=3, tensors={"weight": torch.ones(2)}, values={})
    for name in "ab":
        checkpoint.write(tmp_path / name, state, task=name, attempt=1)
    here, there = socket.socketpair()
    with here, there:
        served = worker.Worker(here)
        served._imported.set()
        for name in "ab":  # the next one is asked for while the first has yet to take its own
            served._fetch(str(tmp_path / name))
        for name in "ab":
            (fetched,) = (found := served._take_fetched(str(tmp_path / name))).values()
            recovered, _ = checkpoint.recover(tmp_path / name, known=found)
            assert recovered is fetched
            assert torch.equal(fetched.tensors["weight"], torch.ones(2))
            assert served._take_fetched(str(tmp_path / name)) == {}
        served._fetch(str(tmp_path / "nobody"))
        assert served._take_fetched(str(tmp_path / "nobody")) == {}
