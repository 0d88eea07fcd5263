"""The host's own Adam against torch's, and the order in which updates are done."""

import threading
import time
from typing import Any

import pytest
import torch
from torch import nn

from dovetail.testing import programs
from dovetail.train import RESIDENT, SPILL, Training
from dovetail.train.spill import adamw_kernel as kernel
from dovetail.train.spill import device_resources
from dovetail.train.spill.host_updates import HostUpdates, Job, part
from dovetail.train.spill.lanes import HostLanes, lanes_for
from dovetail.train.spill.segments import cut

CPU = torch.device("cpu")
STEPS = 20
needs_compiler = pytest.mark.skipif(kernel.load() is None, reason="needs a C compiler")


def tower(optimizer: type[torch.optim.Optimizer], options: dict[str, Any], **others: Any) -> Training:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(6)), nn.Linear(32, 1))
    batches = [(torch.randn(16, 32), torch.randn(16, 1)) for _ in range(4)]
    made = optimizer(model.parameters(), lr=1e-3, **options)
    return Training(model=model, batches=batches, loss=programs.squared, optimizer=made, **others)


@needs_compiler
@pytest.mark.parametrize(
    "others", [{}, {"clip_norm": 0.1}, {"accumulate": 2}, {"accumulate": 2, "clip_norm": 0.1}], ids=str
)
@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        (torch.optim.AdamW, {"weight_decay": 0.1}),
        (torch.optim.Adam, {"weight_decay": 0.1, "betas": (0.8, 0.99)}),
        (torch.optim.AdamW, {"eps": 1e-4, "fused": True}),
    ],
)
def test_the_kernel_is_torchs_update_up_to_rounding(
    optimizer: Any, options: Any, others: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_resources, "uses_kernel", lambda device: True)

    def member() -> Any:
        return programs.fresh(lambda: tower(optimizer, options, **others))

    resident = RESIDENT.open([member()], device=CPU, threads=1)
    spilled = SPILL.open([member()], device=CPU, threads=2, knobs={"device_bytes": 40_000})
    assert sum(not segment.kept for segment in spilled.segments) >= 4
    for _ in range(STEPS):
        expected, found = resident.advance(), spilled.advance()
        assert float(found[0].loss) == pytest.approx(float(expected[0].loss), rel=1e-3)
    ours, theirs = spilled.state().tensors, resident.state().tensors
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        error = float((ours[name] - tensor).double().norm() / tensor.double().norm().clamp(min=1e-12))
        assert error < (1e-4 if name.startswith("model/") else 1e-2), (name, error)
    spilled.close()


def update(*stretches: kernel.Stretch) -> None:
    pool = kernel.ThreadPool(3)
    pool.update(stretches)
    pool.close()


@needs_compiler
def test_a_thread_pool_does_each_piece_once() -> None:
    """Sizes around those of a piece, several parameters a call and many calls: nothing twice, nothing left out."""
    sizes = [1, (1 << 16) - 1, 1 << 16, (1 << 16) + 1, 200_000]
    options = {"lr": 0.5, "betas": (0.0, 0.0), "eps": 0.0, "weight_decay": 0.0}  # a step of 0.5 against the sign
    masters, states = [torch.zeros(size) for size in sizes], [{} for _ in sizes]
    pool = kernel.ThreadPool(3)
    for count in range(1, 21):
        pool.update(
            [
                kernel.stretch(
                    master, slots, gradient=torch.ones_like(master), travel=None,
                    options=options, decoupled=True, scale=1.0,
                )
                for master, slots in zip(masters, states, strict=True)
            ]
        )  # fmt: skip
        assert all(torch.equal(master, torch.full_like(master, -0.5 * count)) for master in masters)
    pool.update([])
    pool.close()
    pool.close()


@needs_compiler
def test_the_kernel_reads_and_writes_bf16_as_torch_rounds_it() -> None:
    master, gradient = torch.randn(1000), torch.randn(1000).bfloat16()
    expected, travel = nn.Parameter(master.clone()), torch.zeros(1000, dtype=torch.bfloat16)
    expected.grad = gradient.float()
    torch.optim.AdamW([expected], lr=0.1).step()
    options = {"lr": 0.1, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-2}
    slots: dict[str, Any] = {}
    update(kernel.stretch(master, slots, gradient=gradient, travel=travel, options=options, decoupled=True, scale=1.0))
    assert torch.allclose(master, expected.detach(), rtol=1e-6, atol=2e-6)
    assert torch.equal(travel, master.bfloat16())
    assert slots["step"] == 1


@needs_compiler
def test_the_kernel_keeps_what_is_not_a_number() -> None:
    master, gradient = torch.zeros(3), torch.tensor([float("nan"), float("inf"), 1.0])
    travel = torch.zeros(3, dtype=torch.bfloat16)
    options = {"lr": 0.1, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}
    update(kernel.stretch(master, {}, gradient=gradient, travel=travel, options=options, decoupled=True, scale=1.0))
    assert master.isnan().tolist() == [True, True, False]
    assert travel.isnan().tolist() == [True, True, False]


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.NAdam, torch.optim.Adagrad])
def test_other_optimizers_are_torchs_own(optimizer: Any) -> None:
    assert not kernel.suits(optimizer([torch.zeros(1)], lr=0.1))


def test_the_kernel_leaves_variants_to_torch() -> None:
    assert not kernel.suits(torch.optim.AdamW([torch.zeros(1)], amsgrad=True))
    assert not kernel.suits(torch.optim.AdamW([torch.zeros(1)], maximize=True))
    assert not kernel.suits(torch.optim.AdamW([torch.zeros(1, dtype=torch.float64)]))


def _past() -> Any:
    return lanes_for(CPU).mark()


def _segments() -> tuple[torch.optim.Optimizer, Any]:
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))
    found = cut(model, limit_bytes=80, fixed_bytes=0, precision="fp32", device=CPU)
    for segment in found:
        segment.travel = torch.zeros(segment.travel_bytes, dtype=torch.uint8)
        segment.gradients = torch.zeros(segment.gradient_bytes, dtype=torch.uint8)
    return torch.optim.SGD(model.parameters(), lr=1.0), found


def test_of_what_has_landed_the_segment_that_forward_needs_first_is_updated_first() -> None:
    optimizer, segments = _segments()
    updates = HostUpdates(threads=1, use_kernel=False)
    done: list[int] = []
    begun, gate = threading.Event(), threading.Event()

    def finished(segment: Any, _: Any) -> None:
        begun.set()
        gate.wait(10)  # until all have landed
        done.append(segment.index)

    for segment in reversed(segments):  # as backward gives them
        job = Job(
            segment=segment,
            optimizer=part(optimizer, segment),
            landed=_past(),
            present=segment.trainable,
            groups=[{"lr": 1.0}],
            round=0,
            finished=finished,
        )
        updates.submit(job)
        begun.wait(10)
    while len(updates._landed_for_torch) < 3:
        pass
    gate.set()
    for segment in segments:
        updates.finish(segment)
    updates.close()
    assert done == [3, 0, 1, 2]  # the first to land had begun


def test_what_fails_in_an_update_is_raised_where_it_is_waited_for() -> None:
    optimizer, segments = _segments()
    updates = HostUpdates(threads=1, use_kernel=False)
    job = Job(
        segment=segments[0],
        optimizer=part(optimizer, segments[0]),
        landed=_past(),
        present=segments[0].trainable,
        groups=[],  # not as many as the optimizer has
        round=0,
    )
    updates.submit(job)
    with pytest.raises(ValueError, match=r"shorter|longer"):
        updates.finish(segments[0])
    updates.close()


class Slow:
    """A mark that is past five milliseconds after it was made."""

    def __init__(self) -> None:
        self._at = time.monotonic() + 0.005

    def synchronize(self) -> None:
        time.sleep(max(0.0, self._at - time.monotonic()))

    def query(self) -> bool:
        return time.monotonic() >= self._at


@pytest.mark.timeout(60)
@pytest.mark.parametrize("use_kernel", [False, pytest.param(True, marks=needs_compiler)])
@pytest.mark.parametrize("others", [{"accumulate": 2}, {"accumulate": 2, "clip_norm": 0.1}, {}], ids=str)
def test_gradients_that_land_late_change_nothing(
    others: dict[str, Any], use_kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def member() -> Any:
        return programs.fresh(lambda: tower(torch.optim.AdamW, {}, **others))

    def down(self: Any, target: torch.Tensor, source: torch.Tensor) -> Slow:
        target.copy_(source)
        return Slow()

    monkeypatch.setattr(HostLanes, "down", down)
    monkeypatch.setattr(device_resources, "uses_kernel", lambda device: use_kernel)
    resident = RESIDENT.open([member()], device=CPU, threads=1)
    spilled = SPILL.open([member()], device=CPU, threads=2, knobs={"device_bytes": 50_000})
    for _ in range(4):
        expected, found = float(resident.advance()[0].loss), float(spilled.advance()[0].loss)
        assert found == (pytest.approx(expected, rel=1e-5) if use_kernel else expected)
    spilled.close()


@needs_compiler
def test_the_kernel_leaves_small_numbers_to_the_process_as_they_are() -> None:
    kernel.load()
    found: list[float] = []
    thread = threading.Thread(target=lambda: found.append(float(torch.tensor(1e-40) * 1.0)))
    thread.start()
    thread.join()
    assert found == [float(torch.tensor(1e-40))]
    assert found[0] > 0
