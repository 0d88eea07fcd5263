"""What the kernel that sends does with its places, with functions of ours for the driver's."""

import ctypes

import numpy
import pytest

from dovetail.frame import device_sender

POINTER, LONG = ctypes.c_void_p, ctypes.c_long
Copy = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_ulonglong, POINTER, ctypes.c_size_t, POINTER)
Record = ctypes.CFUNCTYPE(ctypes.c_int, POINTER, POINTER)
Await = ctypes.CFUNCTYPE(ctypes.c_int, POINTER)
PART, COUNT = 64, 3


class Driver:
    """Fetches only when an event is awaited, as late as a device may."""

    def __init__(self, fails_at=None):
        self.pending, self.of_events, self.copies, self.fails_at = [], {}, 0, fails_at
        self.functions = (Copy(self.copy), Record(self.record), Await(self.wait))
        self.pointers = [ctypes.cast(each, POINTER) for each in self.functions]

    def copy(self, to, held, size, stream):
        self.copies += 1
        self.pending.append((to, held, size))
        return 2 if self.copies == self.fails_at else 0

    def record(self, event, stream):
        self.of_events[event] = len(self.pending)
        return 0

    def wait(self, event):
        self.flush(self.of_events.get(event, 0))
        return 0

    def flush(self, until):
        for number, copy in enumerate(self.pending[:until]):
            if copy is not None:
                to, held, size = copy
                ctypes.memmove(to, held, size)
                self.pending[number] = None


def send(driver, array, target, turn):
    places = (ctypes.c_char * (PART * COUNT))()
    events = (POINTER * COUNT)(*(1000 + number for number in range(COUNT)))
    return device_sender._send_through()(
        ctypes.addressof(places), PART, COUNT, events, ctypes.byref(turn), None, array.ctypes.data,
        target.ctypes.data, array.nbytes, *driver.pointers,
    ), places  # fmt: skip


@pytest.mark.parametrize("size", [0, 1, PART - 1, PART, PART + 1, PART * COUNT, PART * COUNT + 5, 1000])
def test_everything_arrives_however_late_the_device_fetches(size):
    driver, turn = Driver(), LONG(0)
    array = numpy.random.default_rng(size).integers(0, 256, size=size, dtype=numpy.uint8)
    target = numpy.zeros(size, numpy.uint8)
    error, _places = send(driver, array, target, turn)
    assert error == 0
    driver.flush(len(driver.pending))
    numpy.testing.assert_array_equal(target, array)
    assert driver.copies == turn.value == -(-size // PART)


def test_an_error_of_the_driver_ends_it_and_is_given():
    driver = Driver(fails_at=3)
    array, target = numpy.ones(1000, numpy.uint8), numpy.zeros(1000, numpy.uint8)
    error, _places = send(driver, array, target, LONG(0))
    assert (error, driver.copies) == (2, 3)


@pytest.mark.gpu
@pytest.mark.parametrize("compiles", [True, False])
def test_arrays_of_every_kind_arrive(monkeypatch, compiles):
    import torch

    from dovetail.frame.device_pieces import run_in_pieces

    if not compiles:
        monkeypatch.setattr(device_sender, "_send_through", lambda: None)
    draw = numpy.random.default_rng(0)
    plain = draw.normal(size=(3_000_000, 4))
    locked = plain.copy()
    locked.flags.writeable = False
    arrays = [plain, plain[:, ::-1], locked, draw.integers(0, 9, size=(3_000_000, 4)), plain.astype(numpy.float32)]
    for _ in range(3):
        for array in arrays:
            for memory_bytes in (None, 32 << 20):
                found = run_in_pieces(
                    lambda piece: (piece * 2, piece[:, :1]),
                    [array],
                    device="cuda",
                    split=True,
                    memory_bytes=memory_bytes,
                )
                assert numpy.array_equal(found[0], array * 2)
                assert numpy.array_equal(found[1], array[:, :1])
    assert torch.cuda.memory_allocated() < 1 << 20


@pytest.mark.gpu
def test_a_device_that_is_full_midway_leaves_nothing_behind():
    import torch

    from dovetail.frame.device_pieces import run_in_pieces

    x, sizes = numpy.arange(30_000_000.0), []

    def crowded(piece):
        sizes.append(len(piece))
        if len(sizes) > 2 and len(piece) > 300_000:
            raise torch.OutOfMemoryError("no room")
        return piece + 1

    assert numpy.array_equal(run_in_pieces(crowded, [x], device="cuda", split=True, memory_bytes=128 << 20), x + 1)
    assert min(sizes) <= 300_000 < max(sizes)
    assert torch.cuda.memory_allocated() < 1 << 20
