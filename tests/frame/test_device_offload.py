"""Offloaded functions: the same answers wherever they ran, in one piece or in several, and the faster place in the end.
Torch's CPU stands for the device, but for those that need one."""

import threading
import time

import numpy
import pytest
import torch

import dovetail.frame as df
from dovetail.frame import device_offload as module
from dovetail.frame import device_pieces
from dovetail.frame.once import once
from dovetail.vocabulary import DovetailError

X, Y = numpy.random.default_rng(0).normal(size=(2, 10_000))


def both(x, y):
    return numpy.hypot(x, y), x - y


def both_on_device(x, y):
    return torch.hypot(x, y), x - y


@pytest.mark.parametrize("memory_bytes", [None, 1 << 18, 1])
def test_pieces_are_put_together(memory_bytes):
    fused = df.offload(cuda=both_on_device, split=df.rows, device="cpu", memory_bytes=memory_bytes)(both)
    for _ in range(10):
        for found, wanted in zip(fused(X, Y), both(X, Y), strict=True):
            numpy.testing.assert_allclose(found, wanted, rtol=1e-15)
    assert set(fused._seconds[(X.nbytes * 2).bit_length()].least) == {"host", "cpu"}


def test_the_faster_place_is_chosen(monkeypatch):
    clock = iter(range(10_000))
    monkeypatch.setattr(module.time, "perf_counter", lambda: float(next(clock)))
    ran = []

    def slow(x):
        ran.append("host")
        [next(clock) for _ in range(5)]
        return x + 1

    fused = df.offload(cuda=lambda x: ran.append("device") or x + 1, device="cpu")(slow)
    for _ in range(12):
        numpy.testing.assert_array_equal(fused(X), X + 1)
    assert ran[-4:] == ["device"] * 4
    assert "so far host 6 s, cpu 1 s at this size" in fused.explain()


def test_a_device_without_room_gets_smaller_pieces_and_then_the_host_computes():
    sizes = []

    def crowded(x):
        sizes.append(len(x))
        if len(x) > 3000:
            raise torch.OutOfMemoryError("no room")
        return x * 2

    fused = df.offload(cuda=crowded, split=df.rows, device="cpu")(lambda x: x * 2)
    for _ in range(9):
        numpy.testing.assert_array_equal(fused(X), X * 2)
    assert min(sizes) <= 3000 < max(sizes)

    def full(x):
        raise torch.OutOfMemoryError("no room")

    never = df.offload(cuda=full, split=df.rows, device="cpu")(lambda x: x * 2)
    seen = []
    for _ in range(9):
        numpy.testing.assert_array_equal(never(X), X * 2)
        seen.append(never.explain())
    assert any("since the device has no room" in each for each in seen)
    assert "host" in seen[-1]


def test_other_splits_are_refused():
    with pytest.raises(DovetailError, match=r"split must be df.rows or None, got 'columns'"):
        df.offload(cuda=both_on_device, split="columns")


def test_without_a_device_the_function_itself_is_called(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    fused = df.offload(cuda=None)(lambda x: x + 1)
    numpy.testing.assert_array_equal(fused(X), X + 1)
    assert "host" in fused.explain()


@pytest.mark.gpu
@pytest.mark.parametrize("memory_bytes", [None, 1 << 20])
def test_on_a_cuda_device(memory_bytes):
    fused = df.offload(cuda=both_on_device, split=df.rows, memory_bytes=memory_bytes)(both)
    x, y = numpy.random.default_rng(0).normal(size=(2, 1_000_000))
    for _ in range(10):
        for found, wanted in zip(fused(x, y), both(x, y), strict=True):
            numpy.testing.assert_allclose(found, wanted, rtol=1e-14)


def test_a_function_may_give_its_own_memory_again_and_again():
    x, own = numpy.arange(50_000.0), torch.empty(50_000, dtype=torch.float64)
    found = device_pieces.run_in_pieces(
        lambda piece: torch.mul(piece, 2, out=own[: len(piece)]), [x], device="cpu", split=True, memory_bytes=1 << 17
    )
    assert numpy.array_equal(found, 2 * x)


def test_what_is_no_torch_error_of_memory_but_says_so_gives_smaller_pieces():
    sizes = []

    def greedy(piece):
        sizes.append(len(piece))
        if len(piece) > 10_000:
            raise RuntimeError("CUDA error: out of memory")
        return piece + 1

    x = numpy.arange(50_000.0)
    assert numpy.array_equal(device_pieces.run_in_pieces(greedy, [x], device="cpu", split=True), x + 1)
    assert sizes[0] == 50_000
    with pytest.raises(RuntimeError, match="shape"):
        device_pieces.run_in_pieces(lambda piece: piece.reshape(7, -1), [x], device="cpu", split=True)


@pytest.mark.gpu
def test_results_that_are_let_go_of_are_where_the_next_arrive_and_others_stay():
    x = numpy.random.default_rng(0).normal(size=12_000_000)  # results of 96 MB, in pieces of 10 MB
    kept, places, reserved = [], set(), []
    for number in range(12):
        reserved.append(torch.cuda.memory_reserved())
        found = device_pieces.run_in_pieces(
            lambda piece, number=number: (piece + number, piece.sum().reshape(1)),
            [x], device="cuda", split=True, memory_bytes=96 << 20,
        )  # fmt: skip
        assert numpy.array_equal(found[0], x + number)
        assert len(found[1]) > 5
        places.add(found[0].ctypes.data)
        if number in (2, 5):
            kept.append((number, found[0]))
    assert len(places) < 8
    assert reserved[-1] == reserved[3] <= reserved[0] + (96 << 20)
    assert all(numpy.array_equal(array, x + number) for number, array in kept)
    with pytest.raises(RuntimeError, match="shape"):
        device_pieces.run_in_pieces(
            lambda piece: (piece + 1).reshape(7, -1), [x], device="cuda", split=True, memory_bytes=96 << 20
        )


def test_results_that_are_not_rows_are_refused_where_the_first_piece_had_rows():
    x = numpy.arange(50_000.0)
    with pytest.raises(DovetailError, match=r"must give as many for each piece as it was given.*Offload it without"):
        device_pieces.run_in_pieces(lambda piece: piece[piece < 40_000], [x], device="cpu", split=True, memory_bytes=1)


def test_types_that_torch_does_not_have_are_the_hosts():
    fused = df.offload(cuda=lambda x: x + 1, device="cpu")(lambda x: x + 1)
    swapped = numpy.arange(50_000).astype(">f8")
    for _ in range(8):
        numpy.testing.assert_array_equal(fused(swapped), swapped + 1)
    assert "<lambda>: host, " in fused.explain()


def test_a_function_with_weights_that_are_trained_elsewhere_is_called_without_gradients():
    weight = torch.nn.Parameter(torch.full((), 2.0, dtype=torch.float64))
    for memory_bytes in (None, 1):
        found = device_pieces.run_in_pieces(
            lambda x: x * weight, [X], device="cpu", split=True, memory_bytes=memory_bytes
        )
        numpy.testing.assert_array_equal(found, X * 2)


def test_several_who_ask_first_are_given_the_same():
    made, started = [], threading.Barrier(4)

    @once
    def thing():
        made.append(threading.get_ident())
        time.sleep(0.05)
        return object()

    def ask(into):
        started.wait()
        into.append(thing())

    into: list[object] = []
    threads = [threading.Thread(target=ask, args=(into,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert len({id(each) for each in into}) == 1
