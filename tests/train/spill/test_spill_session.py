"""A spilled session keeps within its budget, allocates nothing while it trains, takes a step again where memory ran
out, and leaves the model as a user would want it."""

import dataclasses
import threading
import weakref
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dovetail.planning.techniques.spill import DoesNotFit
from dovetail.testing import programs
from dovetail.train import SPILL, Training
from dovetail.train.spill import SpillSession, device_resources, host_updates
from dovetail.vocabulary import ProgramError, TrainingError
from tests.train.spill.towers import (
    CPU,
    Build,
    Tower,
    adamw,
    assert_same,
    assert_trains_as_resident,
    momentum,
    resident,
    run,
    spilled,
    squared,
    training,
)


def opened(build: Build, **knobs: Any) -> SpillSession:
    return SPILL.open([programs.fresh(build)], device=CPU, threads=1, knobs=knobs)


# Budgets


def on_device(session: SpillSession) -> int:
    """What is on the device, counted from the tensors themselves."""
    resources, kept = session._resources, [segment for segment in session.segments if segment.kept]
    tensors = [segment.travel for segment in kept]
    for segment in kept:
        tensors += [entry.master for entry in segment.entries]
        optimizer = session._parts.get(segment)
        tensors += [slot for slots in (optimizer.state.values() if optimizer else ()) for slot in slots.values()]
    # A count of steps stays on the host whatever the device, as torch has it.
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors if t.dim()}
    return resources.arena_bytes + sum(storages.values())


@settings(max_examples=15, deadline=None)
@given(
    device_bytes=st.integers(1, 30_000),
    depth=st.integers(1, 4),
    layers=st.integers(1, 8),
    options=st.sampled_from([{}, {"clip_norm": 0.1}, {"precision": "bf16-pure"}]),
)
def test_what_is_on_the_device_keeps_within_the_budget(
    device_bytes: int, depth: int, layers: int, options: dict[str, Any]
) -> None:
    def build() -> Training:
        return training(Tower(layers), optimizer=momentum, **options)

    try:
        session = opened(build, device_bytes=device_bytes, depth=depth)
    except DoesNotFit as error:
        refused = error
    else:
        refused = None
    if refused is not None:
        assert refused.needed_bytes > device_bytes == refused.free_bytes
        return
    for _ in range(2):
        session.advance()
    session.drain()
    assert on_device(session) <= session.device_bytes <= session.layout.device_bytes <= device_bytes
    session.close()


def test_counts_of_steps_are_on_the_host_and_count_there() -> None:
    session, device_bytes = _opened_to_the_byte()
    session.advance()
    session.drain()
    assert session.device_bytes <= device_bytes
    session.close()


def _opened_to_the_byte() -> tuple[SpillSession, int]:
    """A budget that what is kept and what streams take up wholly."""
    some = opened(lambda: training(Tower(9)), device_bytes=8450, depth=2)
    some.close()
    assert any(segment.kept for segment in some.segments)
    return opened(lambda: training(Tower(9)), device_bytes=some.layout.device_bytes, depth=2), some.layout.device_bytes


@settings(max_examples=6, deadline=None)
@given(depth=st.integers(1, 4), layers=st.integers(1, 8))
def test_the_least_that_a_refusal_names_is_enough_and_less_is_not(depth: int, layers: int) -> None:
    def build() -> Training:
        return training(Tower(layers))

    needed = [1]
    while True:
        try:
            opened(build, device_bytes=needed[-1], depth=depth).close()
            break
        except DoesNotFit as error:
            needed.append(error.needed_bytes)
    assert needed == sorted(set(needed))
    with pytest.raises(DoesNotFit, match=r"needs at least .* on the device .* the budget is"):
        opened(build, device_bytes=needed[-1] - 1, depth=depth)


def test_a_larger_budget_keeps_more() -> None:
    kept = []
    for device_bytes in range(5000, 40_000, 5000):
        session = opened(lambda: training(Tower(9)), device_bytes=device_bytes, depth=2)
        kept.append(sum(segment.kept for segment in session.segments))
        session.close()
    assert kept == sorted(kept)
    assert (kept[0], kept[-1]) == (0, 10)


def test_a_forecast_says_what_it_takes() -> None:
    session = spilled(lambda: training(Tower(), precision="bf16-pure"), depth=2)
    before = session.forecast()
    assert before.pace is None
    assert before.device_bytes == session.device_bytes
    assert before.pinned_bytes == session._resources.memory.bytes
    assert before.host_bytes - before.pinned_bytes > 0
    for _ in range(4):
        session.advance()
    pace = session.forecast().pace
    assert pace is not None
    session.close()


# The steady state


class Watching(Tower):
    """Remembers where its weights were when they were used."""

    def __init__(self, layers: int = 6) -> None:
        super().__init__(layers)
        self.seen: list[int] = []
        for layer in self.layers:
            layer.register_forward_hook(lambda module, *_: self.seen.append(module.weight.data_ptr()))


@pytest.mark.parametrize("recompute", [False, True])
def test_nothing_is_allocated_on_the_device_while_it_trains(recompute: bool) -> None:
    session = spilled(lambda: training(Watching()), depth=2, recompute=recompute)
    model, streamer = session._training.model, session._resources.streamer
    assert isinstance(model, Watching)
    travel, gradients = streamer.travel, streamer.gradients
    places = {travel._bytes.data_ptr(), gradients._bytes.data_ptr()}
    starts = {slot.bytes.data_ptr() for slot in travel._free}
    host = {segment.travel.data_ptr() for segment in session.segments if segment.travel is not None}
    for _ in range(4):
        model.seen.clear()
        session.advance()
        assert streamer.travel is travel
        assert streamer.gradients is gradients
        assert {travel._bytes.data_ptr(), gradients._bytes.data_ptr()} == places
        assert set(model.seen) <= starts
        assert len(model.seen) >= 6
    assert {segment.travel.data_ptr() for segment in session.segments if segment.travel is not None} == host
    # Between steps nothing is lost: every slot is free or holds a segment.
    assert len(travel._free) + len(streamer._present) == 2
    assert len(gradients._free) == 2
    session.close()


# Out of memory


class Failing(Tower):
    """Runs out of memory in its first calls, or some calls later, after it has drawn and counted."""

    def __init__(self, *, times: int, after: int = 0) -> None:
        super().__init__()
        self.first, self.norm, self.dropout = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.3)
        self.times, self.after = times, after

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.dropout(self.first(x)))
        self.after -= 1
        if self.after < 0 and self.times > 0:
            self.times -= 1
            raise torch.OutOfMemoryError("not enough")
        return super().forward(x)


def failing(*, times: int, after: int = 0, **options: Any) -> Build:
    return lambda: training(Failing(times=times, after=after), **options)


def test_a_first_step_that_runs_out_of_memory_is_taken_again_with_recomputation() -> None:
    session = spilled(failing(times=1))
    assert not session._spilled.recompute
    assert_trains_as_resident(session, failing(times=0))
    assert session._spilled.recompute


class _Marked(torch.autograd.Function):
    """Something that lives as long as the graph of its operation."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, alive: list[Any]) -> torch.Tensor:
        context.held = Mark()
        alive.append(weakref.ref(context.held))
        return x.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


class Mark:
    pass


class Watched(Failing):
    """Keeps an eye on the graphs of its forwards; a saved output, relu's, is on their way."""

    def __init__(self, *, times: int) -> None:
        super().__init__(times=times)
        self.alive: list[Any] = []
        self.left: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.left.append(sum(mark() is not None for mark in self.alive))
        return super().forward(torch.relu(_Marked.apply(self.first(x), self.alive)))


def test_nothing_of_an_attempt_that_ran_out_of_memory_stays() -> None:
    model = Watched(times=1)
    session = spilled(lambda: training(model))
    session.advance()
    assert model.left[:2] == [0, 0]  # the second forward began with the first one's activations gone
    session.close()


@pytest.mark.parametrize("options", [{"clip_norm": 0.1}, {"precision": "bf16"}], ids=str)
def test_and_so_it_is_with_other_settings(options: Any) -> None:
    assert_trains_as_resident(spilled(failing(times=1, **options)), failing(times=0, **options))


@pytest.mark.parametrize("times", [2, 3])
def test_what_is_kept_goes_when_recomputation_is_not_enough(times: int) -> None:
    session = opened(failing(times=times), device_bytes=1 << 20, depth=2)
    assert all(segment.kept for segment in session.segments)
    assert_trains_as_resident(session, failing(times=0))
    assert any(not segment.kept for segment in session.segments)


def test_what_never_fits_passes_its_error() -> None:
    session = opened(failing(times=1000), device_bytes=1 << 20, depth=2)
    with pytest.raises(torch.OutOfMemoryError, match="not enough"):
        session.advance()
    assert all(segment.fixed or not segment.kept for segment in session.segments)
    session.close()


def test_a_later_step_that_runs_out_of_memory_is_taken_again_or_passes_its_error() -> None:
    # Where updates had begun, or buffers have changed, there is nothing to go back to.
    session = spilled(failing(times=1, after=2))
    expected, _ = run(resident(failing(times=0)), 3)
    losses = [float(session.advance()[0].loss) for _ in range(2)]
    try:
        losses.append(float(session.advance()[0].loss))
    except torch.OutOfMemoryError:
        expected = expected[:2]
    session.close()
    assert losses == expected


def test_running_out_in_a_later_microbatch_counts_no_gradient_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    # The host may still be adding up the first one's.
    add_up, slow = host_updates.add_up, threading.Event()

    def later(master: Any, gradient: Any) -> None:
        slow.wait(0.002)
        add_up(master, gradient)

    monkeypatch.setattr(host_updates, "add_up", later)
    options = {"accumulate": 2, "clip_norm": 0.1}
    session = spilled(failing(times=1, after=1, **options), depth=8)
    expected, state = run(resident(failing(times=0, **options)), 3)
    try:
        losses, found = run(session, 3)
    except torch.OutOfMemoryError:
        return
    finally:
        session.close()
    assert losses == expected
    assert_same(found, state)


def drawing(model: nn.Module, batch: Any) -> torch.Tensor:
    return squared(model, (batch[0] + float(numpy.random.rand()), batch[1]))


def test_a_step_taken_again_draws_from_numpy_what_it_drew() -> None:
    assert_trains_as_resident(spilled(failing(times=1, loss=drawing)), failing(times=0, loss=drawing))


class Replacing(Failing):
    """Puts a new tensor where a buffer was."""

    def __init__(self, *, times: int) -> None:
        super().__init__(times=times)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = self.seen + 1
        return super().forward(x) * (1 + self.seen)


def test_a_step_taken_again_finds_its_buffers_as_they_were() -> None:
    session = spilled(lambda: training(Replacing(times=1)))
    assert_trains_as_resident(session, lambda: training(Replacing(times=0)))


def test_what_else_fails_is_the_programs() -> None:
    def wrong(model: nn.Module, batch: Any) -> torch.Tensor:
        raise ValueError("mine")

    session = spilled(lambda: training(Tower(), loss=wrong))
    with pytest.raises(TrainingError, match=r"step 1 .* raised ValueError: mine"):
        session.advance()
    session.close()


# The end


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "bf16-pure"])
@pytest.mark.parametrize("device_bytes", [1, 1 << 20])
def test_closing_gives_the_model_back_with_what_it_learnt(precision: str, device_bytes: int, recompute: bool) -> None:
    before = set(threading.enumerate())
    model = _Mixed()
    parameters = dict(model.named_parameters())
    session = spilled(lambda: training(model, precision=precision), device_bytes=device_bytes, recompute=recompute)
    for _ in range(3):
        session.advance()
    expected = {name: tensor.clone() for name, tensor in session.state().tensors.items()}
    session.close()
    session.close()
    assert dict(model.named_parameters()).keys() == parameters.keys()
    for name, parameter in model.named_parameters():
        assert parameter is parameters[name]
        assert parameter.device == CPU
        assert torch.equal(parameter, expected[f"model/{name}"])
        assert parameter.grad is None
    _assert_untouched(model)
    assert torch.isfinite(squared(model, (torch.ones(2, 8), torch.ones(2, 1))))
    assert set(threading.enumerate()) == before


class _Mixed(Tower):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.dropout = nn.LayerNorm(8), nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.norm(self.dropout(x)))


def _assert_untouched(model: nn.Module) -> None:
    for module in model.modules():
        assert "forward" not in vars(module)
        assert type(module).__module__ != "dovetail.train.randomness"
        assert not any("dovetail" in name for name in vars(module))
        assert not module._forward_pre_hooks
        assert not module._forward_hooks
    assert not any(parameter._backward_hooks for parameter in model.parameters())


def test_a_forward_that_was_patched_before_is_patched_after() -> None:
    model = Tower()
    mine = model.layers[0].forward
    vars(model.layers[0])["forward"] = lambda x: mine(x) * 2
    patched = vars(model.layers[0])["forward"]
    session = spilled(lambda: training(model))
    session.advance()
    session.close()
    assert vars(model.layers[0])["forward"] is patched


def test_a_module_of_two_parents_is_left_as_it_was() -> None:
    shared = nn.Linear(8, 8)
    model = nn.Sequential(nn.Sequential(shared, nn.Linear(8, 8)), nn.Sequential(shared, nn.Linear(8, 1)))
    session = spilled(lambda: training(model))
    session.close()
    _assert_untouched(model)


def test_closing_waits_for_the_updates_under_way() -> None:
    session = spilled(lambda: training(Tower()), depth=3)
    model = session._training.model
    for _ in range(2):
        session.advance()
    session.close()
    _, expected = run(resident(lambda: training(Tower())), 2)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, expected.tensors[f"model/{name}"])


def test_closing_after_a_failure_works() -> None:
    before = set(threading.enumerate())
    model = Tower()
    session = spilled(lambda: training(model, optimizer=Broken))
    session.advance()
    with pytest.raises(ValueError, match="broken"):
        session.drain()
    session.close()
    _assert_untouched(model)
    assert set(threading.enumerate()) == before


class Broken(torch.optim.SGD):
    """Fails in an update, on the host's own thread, once training is under way."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.1)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        if threading.current_thread() is not threading.main_thread():
            raise ValueError("broken")


# Numbers


def double() -> Training:
    model = Tower().double()
    return training(model, loss=lambda model, batch: squared(model, (batch[0].double(), batch[1])), clip_norm=0.1)


def test_clipping_is_exact_in_double_precision() -> None:
    assert_trains_as_resident(spilled(double), double)


def scheduled(rate: Any) -> Training:
    model = Tower()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    return training(model, optimizer=lambda _: optimizer, schedule=schedule)


@pytest.mark.parametrize("as_tensor", [False, True])
def test_an_update_has_the_rate_of_its_own_step(as_tensor: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    step = host_updates.step

    def later(*arguments: Any) -> None:
        threading.Event().wait(0.005)  # until the schedule has moved on
        step(*arguments)

    monkeypatch.setattr(host_updates, "step", later)

    def build() -> Training:
        return scheduled(torch.tensor(0.1) if as_tensor else 0.1)

    assert_trains_as_resident(spilled(build), build)


def headed(**options: Any) -> Training:
    """All is trainable, and only the head is given to the optimizer."""
    model = Tower()
    return training(model, optimizer=lambda _: adamw(model.head.parameters()), **options)


@pytest.mark.parametrize("options", [{}, {"accumulate": 2, "clip_norm": 1e9}], ids=str)
def test_what_no_optimizer_has_stays_as_it_is(options: Any) -> None:
    session = spilled(lambda: headed(**options))
    assert_trains_as_resident(session, lambda: headed(**options))


def test_clipping_counts_what_no_optimizer_has_as_resident_does() -> None:
    def build() -> Training:
        return headed(clip_norm=0.1)

    assert_trains_as_resident(spilled(build), build)


def test_the_hosts_kernel_leaves_alone_what_no_optimizer_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_resources, "uses_kernel", lambda device: True)
    session = spilled(headed)
    for _ in range(3):
        session.advance()
    session.drain()
    session.close()


def test_a_variable_that_no_checkpoint_has_is_refused() -> None:
    """A model too large for its device never meets `resident`, which would find out too."""
    seen = [0]

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        seen[0] += 1
        return programs.squared(model, batch) * seen[0]

    member = programs.fresh(lambda: dataclasses.replace(programs.momentum(), loss=loss))
    session = SPILL.open([member], device=CPU, threads=1, knobs={"device_bytes": 1 << 20})
    with pytest.raises(ProgramError, match="changes must be declared; its variable 'seen'"):
        session.advance()
    session.close()


def test_what_is_compiled_in_place_streams_as_written_and_is_compiled_again_afterwards() -> None:
    calls: list[str] = []

    def compiler(graph: torch.fx.GraphModule, example: list[torch.Tensor]) -> Any:
        calls.append("compiled")
        return graph.forward

    model = Tower()
    for layer in model.layers:
        layer.compile(backend=compiler)
    slots = [vars(layer)["_compiled_call_impl"] for layer in model.layers]
    session = SPILL.open([programs.fresh(lambda: training(model))], device=CPU, threads=1, knobs={})
    session.advance()
    session.evaluate()
    assert not calls
    session.close()
    assert [vars(layer)["_compiled_call_impl"] for layer in model.layers] == slots
    with pytest.raises(DoesNotFit):
        SPILL.open([programs.fresh(lambda: training(model))], device=CPU, threads=1, knobs={"host_bytes": 1})
    assert [vars(layer)["_compiled_call_impl"] for layer in model.layers] == slots
