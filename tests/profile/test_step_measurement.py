import itertools
import math

import pytest
import torch

from dovetail.profile import step_measurement
from dovetail.profile.step_measurement import MOST_STEPS, _is_enough, measure
from dovetail.train.base import StepReport
from dovetail.train.resident import RESIDENT
from dovetail.vocabulary import Profile, ProgramError, dumps, loads
from tests.profile.programs import training


def profile_of(found, tmp_path, *, device="cpu", **options):
    return measure(
        RESIDENT,
        found,
        seed=0,
        device=torch.device(device),
        threads=1,
        kind=device,
        count=1,
        family="f",
        build_seconds=0.5,
        scratch=tmp_path / "scratch",
        seconds=0.0,
        **options,
    )


def test_of_a_large_state_only_a_part_is_written(tmp_path, monkeypatch):
    written = []

    def write(root, state, **names):
        written.append(sum(tensor.nbytes for tensor in state.tensors.values()))

    monkeypatch.setattr(step_measurement, "SAMPLE_BYTES", 64)
    monkeypatch.setattr(step_measurement.checkpoint, "write", write)
    profile = profile_of(training(), tmp_path)
    assert 64 <= written[0] < profile.parameter_bytes
    assert profile.save_seconds > 0


def test_a_known_model(tmp_path):
    found = training(evaluate=lambda model: {"accuracy": 0.5}, evaluate_every=7)
    parameters = sum(parameter.nbytes for parameter in found.model.parameters())
    profile = profile_of(found, tmp_path, layers=True)
    assert profile.parameter_bytes == parameters
    assert 2 * parameters <= profile.optimizer_bytes < 2 * parameters + 1000  # two moments and the step counts
    assert profile.batch_bytes == 256
    assert (profile.steps_per_epoch, profile.evaluate_every, profile.build_seconds) == (2, 7, 0.5)
    assert profile.metrics == ("accuracy", "train/loss")
    assert profile.peak_bytes > parameters
    for seconds in (profile.step_seconds, profile.evaluate_seconds, profile.save_seconds):
        assert math.isfinite(seconds)
        assert seconds > 0
    assert len(profile.layers) == 4
    assert len(profile.edges) == 3
    assert "torch" in profile.versions
    assert loads(Profile, dumps(profile)) == profile


def test_what_first_steps_compile_is_told_apart_from_building(tmp_path, monkeypatch):
    def profile(first):
        seconds = itertools.chain([first], itertools.repeat(0.01))
        monkeypatch.setattr(step_measurement, "_time_call", lambda action, device: (next(seconds), action()))
        return profile_of(training(), tmp_path)

    assert profile(9.01).compile_seconds == pytest.approx(9.0)
    assert profile(2.0).compile_seconds == 0.0  # that is torch warming up, which a worker does once


def test_metrics_of_steps_and_no_evaluation(tmp_path):
    profile = profile_of(training(loss=lambda model, batch: (model(batch["x"]).mean(), {"size": 1})), tmp_path)
    assert profile.metrics == ("train/loss", "train/size")
    assert profile.evaluate_seconds == 0
    assert (profile.layers, profile.edges) == ((), ())


def test_scratch_and_threads_are_left_as_they_were(tmp_path):
    threads = torch.get_num_threads()
    profile_of(training(), tmp_path)
    assert list((tmp_path / "scratch").iterdir()) == []
    assert torch.get_num_threads() == threads


def test_steps_of_its_own(tmp_path):
    def step(training, batch):
        loss = training.model(batch["x"]).mean()
        training.optimizer.zero_grad()
        loss.backward()
        training.optimizer.step()
        return {"loss": loss.detach(), "extra": 1.0}

    profile = profile_of(training(loss=None, step=step), tmp_path, layers=True)
    assert profile.metrics == ("train/extra", "train/loss")
    assert profile.layers == ()


def test_when_it_is_enough():
    assert not _is_enough([], 1, 0, 0.0, late=True)
    assert _is_enough([1.0], 1, 5, 0.6, late=True)
    assert not _is_enough([1.0] * 4, 1, 5, 0.6, late=False)
    assert not _is_enough([0.01] * 5, 1, 5, 0.6, late=False)
    assert _is_enough([0.2] * 5, 1, 5, 0.6, late=False)
    assert _is_enough([0.0] * MOST_STEPS, 1, 5, 0.6, late=False)


def test_of_stretches_several_are_timed_unless_they_are_long():
    assert not _is_enough([0.01] * 4, 5, 5, 0.1, late=False)
    assert _is_enough([0.01] * 5, 5, 5, 0.1, late=False)
    assert not _is_enough([0.1], 5, 5, 0.1, late=False)
    assert _is_enough([0.1, 0.103], 5, 5, 0.1, late=False)
    assert not _is_enough([0.158, 0.129], 5, 5, 0.1, late=False)
    assert _is_enough([0.158, 0.129, 0.129], 5, 5, 0.1, late=False)
    assert _is_enough([1.0], 5, 5, 0.1, late=False)


@pytest.mark.parametrize(
    ("seconds", "step"),
    [
        ([5.0, 0.16, 0.16, 0.79, 0.645, 0.645], 0.129),  # the first slow ones do not count once steps have settled
        ([0.15, 0.15, 0.15, 0.755, 0.925, 0.765], 0.153),  # of three stretches that do not agree the middle one does
    ],
)
def test_a_step_takes_what_stretches_agree_on(seconds, step, monkeypatch):
    left = iter(seconds)
    monkeypatch.setattr(step_measurement, "_time_call", lambda action, device: (next(left), action()))
    advance = lambda: [StepReport(step=1, loss=torch.tensor(0.0), metrics={})]  # noqa: E731
    timing = step_measurement._steps(advance, torch.device("cuda"), 3, 5, 0.2, 60.0, waited=lambda: 0.0)
    assert timing.step_seconds == pytest.approx(step)


@pytest.mark.parametrize("steps", [1, 2, 4, 40])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_no_more_steps_are_taken_than_the_task_has(device, steps, monkeypatch):
    monkeypatch.setattr(step_measurement, "_time_call", lambda action, device: (1e-6, action()))
    taken = []

    def advance():
        taken.append(len(taken))
        return [StepReport(step=len(taken), loss=torch.tensor(0.0), metrics={})]

    timing = step_measurement._steps(
        advance, torch.device(device), 3, 5, 0.2, 60.0, waited=lambda: 0.0, task_steps=steps
    )
    assert 1 <= len(taken) == timing.steps <= steps


def test_no_batches(tmp_path):
    empty = training()
    empty.batches = []
    with pytest.raises(ProgramError, match="at least one"):
        profile_of(empty, tmp_path)


@pytest.mark.gpu
def test_on_a_device(tmp_path):
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    found = training(width=256)
    parameters = sum(parameter.nbytes for parameter in found.model.parameters())
    profile = profile_of(found, tmp_path, device="cuda", layers=True)
    assert profile.step_seconds > 0
    assert 4 * parameters <= profile.peak_bytes  # parameters, gradients, two moments
    assert len(profile.layers) == 4
