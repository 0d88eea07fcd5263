"""Loops on torch's tensors: NumPy's answers whole and in pieces, where a device has the types and operations. torch's
CPU stands for the device but where one is needed."""

import numpy
import pytest
import torch
from hypothesis import given, settings

import dovetail.frame as df
from dovetail.frame import device_loops, device_pieces, runner
from dovetail.frame.device_link import LinkRates
from dovetail.frame.loops import plan_loops
from dovetail.frame.placement import PlaceSeconds
from dovetail.frame.torch_loops import can_be_torchs
from tests.frame.test_against_numpy import COMMON, LazyArray, close, expressions, is_stable, lazily, numpy_says

FAST = LinkRates(there=1e15, back=1e15, call_seconds=0.0)


@settings(max_examples=300, **COMMON)
@given(expressions())
def test_a_device_gives_numpys_answers(drawn):
    arrays, steps = drawn
    try:
        wanted = numpy_says(steps, arrays)
    except (TypeError, ValueError, OverflowError):
        return
    if not is_stable(steps, arrays):
        return
    for lazy, right in zip(lazily(steps, arrays), wanted, strict=True):
        if not isinstance(lazy, LazyArray):
            continue
        plan = plan_loops([lazy._node], known=lambda node: node.value is not None)
        if len(plan.steps) != 1 or not plan.loops() or not can_be_torchs(plan.loops()[0]):
            continue
        (loop,) = plan.loops()
        inputs = [numpy.asarray(node.value) for node in loop.inputs]
        shape = numpy.broadcast_shapes(*(each.shape for each in inputs))
        if loop.numbers or not shape or 0 in shape or not any(device_loops._has_rows(each, shape) for each in inputs):
            continue
        for memory_bytes in (None, 1):
            (found,) = device_loops.run_on_device(loop, inputs, [], shape, device="cpu", memory_bytes=memory_bytes)
            close(found, right)


@pytest.mark.parametrize("memory_bytes", [None, 1])
def test_outputs_and_reductions_are_put_together(memory_bytes):
    x, y = numpy.random.default_rng(0).normal(size=(2, 5000, 7))
    row = numpy.arange(7.0)
    lazies = [LazyArray(runner_input(each), compute=runner.compute) for each in (x, y, row)]

    def both(x, y, row):
        scaled = numpy.hypot(x, y) * row
        return scaled, numpy.sum(scaled), numpy.max(scaled), numpy.any(scaled > 20)

    plan = plan_loops([each._node for each in both(*lazies)])
    (loop,) = plan.loops()
    values = {node: node.value for node in plan.inputs}
    found = device_loops.run_on_device(
        loop, [values[node] for node in loop.inputs], [], (5000, 7), device="cpu", memory_bytes=memory_bytes
    )
    right = dict(zip(("map", "sum", "max", "any"), both(x, y, row), strict=True))
    assert len(found) == 4
    for node, one in zip((*loop.outputs, *loop.reductions), found, strict=True):
        numpy.testing.assert_allclose(one, right["map" if node.kind == "map" else node.name], rtol=1e-13)


def runner_input(value):
    from dovetail.frame.nodes import input_node

    return input_node(value)


def test_a_loop_runs_where_it_was_fastest_and_explains_it(monkeypatch):
    ran = []
    monkeypatch.setattr(device_loops, "link_rates", lambda: FAST)

    def on_device(loop, arrays, numbers, shape):
        ran.append("cuda")
        return device_loops.run_on_device(loop, arrays, numbers, shape, device="cpu")

    monkeypatch.setattr(runner, "run_on_device", on_device)
    clock = iter(range(100_000))
    monkeypatch.setattr(runner.time, "perf_counter", lambda: float(next(clock)))
    fused = df.fuse(lambda x: numpy.sqrt(x) + 3 * x - 0.125)
    x = numpy.random.default_rng(0).uniform(size=100_000)
    fused(x)
    assert fused.wait()
    for _ in range(12):  # a device's root may be off in its last place, which differences near zero show
        numpy.testing.assert_allclose(fused(x), numpy.sqrt(x) + 3 * x - 0.125, rtol=1e-15, atol=1e-15)
    assert 4 <= len(ran) <= 8
    assert "place: " in fused.explain()
    assert "at 65,536 elements and more host " in fused.explain()


def test_a_full_device_leaves_it_to_the_host(monkeypatch):
    monkeypatch.setattr(device_loops, "link_rates", lambda: FAST)

    def full(*_):
        raise device_pieces.DeviceFull("no room")

    monkeypatch.setattr(runner, "run_on_device", full)
    fused = df.fuse(lambda x: numpy.sqrt(x) * 5 - 0.5)
    x = numpy.random.default_rng(0).uniform(size=100_000)
    for _ in range(8):
        numpy.testing.assert_allclose(fused(x), numpy.sqrt(x) * 5 - 0.5, rtol=1e-15)
        fused.wait()
    assert "place: host" in fused.explain()


def test_who_was_forked_from_who_used_a_device_computes_on_the_host(monkeypatch):
    monkeypatch.setattr(device_loops, "link_rates", lambda: FAST)
    fused = df.fuse(lambda x: numpy.sqrt(x) * 5 - 0.5)
    x = numpy.random.default_rng(0).uniform(size=100_000)
    fused(x)
    assert fused.wait()
    (loop,) = fused._last.prepared.plan.loops()
    known = {(100_000).bit_length(): PlaceSeconds(settled="cuda")}
    assert device_loops.choose_place(loop, known, [x], x.shape)[0] == "cuda"
    monkeypatch.setattr(device_loops, "is_cut_off", lambda: True)
    assert device_loops.choose_place(loop, known, [x], x.shape) == ("host", None)


def test_nothing_is_sent_that_the_link_alone_would_take_longer_for():
    seconds = PlaceSeconds()
    for _ in range(4):
        assert seconds.choose(["host", "cuda"], {"cuda": 2.0}) == "host"
        seconds.add("host", 1.0)
    assert seconds.choose(["host", "cuda"], {"cuda": 2.0}) == "host"
    assert seconds.choose(["host", "cuda"], {"cuda": 0.5}) == "cuda"


def test_casts_to_bool_ask_whether_it_is_zero():
    fused = df.fuse(lambda x, n: numpy.logical_and(x, n))
    x, n = numpy.array([0.25, 0.0, 3.0] * 20_000), numpy.array([256, 1, 7] * 20_000)
    fused(x, n)
    assert fused.wait()
    numpy.testing.assert_array_equal(fused(x, n), numpy.logical_and(x, n))


@pytest.mark.gpu
@pytest.mark.parametrize("memory_bytes", [None, 1 << 24])
def test_on_a_cuda_device(memory_bytes):
    x, y = numpy.random.default_rng(0).uniform(1, 2, size=(2, 3_000_000))
    lazies = [LazyArray(runner_input(each), compute=runner.compute) for each in (x, y)]
    wanted = [numpy.log(x) * numpy.exp(y) - numpy.arctan(x / y), numpy.sum(x)]
    plan = plan_loops([(numpy.log(lazies[0]) * numpy.exp(lazies[1]) - numpy.arctan(lazies[0] / lazies[1]))._node,
                       numpy.sum(lazies[0])._node])  # fmt: skip
    (loop,) = plan.loops()
    values = {node: node.value for node in plan.inputs}
    assert torch.cuda.is_available()
    found = device_loops.run_on_device(
        loop, [values[node] for node in loop.inputs], [], x.shape, memory_bytes=memory_bytes
    )
    for one, right in zip(found, wanted, strict=True):
        numpy.testing.assert_allclose(one, right, rtol=1e-13, atol=1e-13)
