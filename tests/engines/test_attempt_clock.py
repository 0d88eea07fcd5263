import subprocess
import sys

import pytest

from dovetail.engines.attempt_clock import AttemptClock

COMPILED = """
import torch
from dovetail.engines.attempt_clock import AttemptClock, compiled_seconds

clock = AttemptClock()
before = compiled_seconds()
step = torch.compile(lambda x: (x * 2).sin().sum(), backend="aot_eager")
with clock.phase("evaluate"):
    step(torch.ones(3))
assert compiled_seconds() > before
found = clock.seconds(read=0.0)
assert found["compile"] == compiled_seconds() - before, found
"""


class Time:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now, self.compiled = 100.0, 7.0

    def clock(self) -> AttemptClock:
        return AttemptClock(time=lambda: self.now, compiled=lambda: self.compiled)


def test_every_second_is_in_one_phase():
    time = Time()
    clock = time.clock()
    time.now += 5.0
    with clock.phase("evaluate"):
        time.now += 2.0
    with clock.phase("save"):
        time.now += 1.0
    assert clock.stepping_seconds() == 5.0
    assert clock.seconds(read=1.5) == {"evaluate": 2.0, "save": 1.0, "read": 1.5, "train": 3.5}


def test_compiling_is_no_part_of_what_it_happens_in():
    time = Time()
    clock = time.clock()
    time.now, time.compiled = time.now + 4.0, time.compiled + 3.0
    with clock.phase("evaluate"):
        time.now, time.compiled = time.now + 2.0, time.compiled + 1.5
    assert clock.seconds(read=0.0) == {"evaluate": 0.5, "compile": 4.5, "train": 1.0}


def test_a_phase_that_raises_is_counted():
    time = Time()
    clock = time.clock()

    def fail():
        with clock.phase("save"):
            time.now += 1.0
            raise ValueError("bad")

    with pytest.raises(ValueError, match="bad"):
        fail()
    assert clock.seconds(read=0.0) == {"save": 1.0}


def test_what_is_told_never_exceeds_what_passed():
    time = Time()
    clock = time.clock()
    time.now += 1.0
    time.compiled += 9.0
    assert clock.seconds(read=5.0) == {"read": 1.0}


@pytest.mark.process
def test_torchs_own_account_of_compiling_is_taken():
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", COMPILED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
