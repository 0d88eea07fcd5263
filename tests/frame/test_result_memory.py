"""Memory of results is lent again once nobody has them, within its limit. Without a device nothing is pinned."""

import gc
import threading

import numpy

from dovetail.frame.result_memory import LEAST_BYTES, ResultMemory


def lend(memory, size=LEAST_BYTES):
    return memory.lend((size,), numpy.uint8, pin=False)[0]


def test_nothing_is_lent_twice_at_once():
    memory = ResultMemory(most_bytes=4 * LEAST_BYTES)
    first, second = lend(memory), lend(memory)
    assert not numpy.shares_memory(first, second)
    view, where = first[10:20], first.ctypes.data
    del first  # a view of it is still somebody's
    third = lend(memory)
    assert third.ctypes.data != where
    view[:] = 7
    third[:] = 1
    assert (view == 7).all()
    del view
    assert lend(memory).ctypes.data == where


def test_types_and_shapes_of_the_same_size_share_memory():
    memory = ResultMemory(most_bytes=LEAST_BYTES)
    first, _ = memory.lend((LEAST_BYTES // 16, 2), numpy.float64, pin=False)
    assert first.shape == (LEAST_BYTES // 16, 2)
    first[:] = 0.5
    where = first.ctypes.data
    del first
    again, _ = memory.lend((LEAST_BYTES // 4,), numpy.int32, pin=False)
    assert again.ctypes.data == where
    again += 1


def test_what_is_beyond_the_limit_is_dropped_the_longest_kept_first():
    memory = ResultMemory(most_bytes=2 * LEAST_BYTES)
    arrays = [lend(memory) for _ in range(3)]
    where = [each.ctypes.data for each in arrays]
    while arrays:
        arrays.pop(0)
    gc.collect()
    assert [each.memory.ctypes.data for each in memory._kept] == where[1:]
    nothing = ResultMemory(most_bytes=0)
    lend(nothing)
    assert not nothing._kept


def test_small_arrays_are_numpys_own():
    memory = ResultMemory(most_bytes=1 << 30)
    array, by_itself = memory.lend((100,), numpy.float64)
    assert array.flags.owndata
    assert not by_itself


def test_threads_that_lend_and_let_go_never_share():
    memory, faults = ResultMemory(most_bytes=3 * LEAST_BYTES), []

    def work(number):
        for _ in range(40):
            array = lend(memory)
            array[:: LEAST_BYTES // 64] = number
            if not (array[:: LEAST_BYTES // 64] == number).all():
                faults.append(number)
            del array

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert sum(each.memory.nbytes for each in memory._kept) <= 3 * LEAST_BYTES
