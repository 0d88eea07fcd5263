"""The bench of fused training: its parts at a toy size, and its bars."""

import math
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    import fuse

    return fuse


@pytest.mark.process
def test_ours_takes_the_steps_that_the_tasks_take_alone() -> None:
    done = subprocess.run(
        [sys.executable, "bench/fuse.py", "lora-plain", "--quick"],
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "250"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "met     ours, plain: losses of 8 steps" in done.stdout
    assert "times faster than one after another" in done.stdout


def test_the_fastest_of_ours_counts_and_a_part_that_failed_does_not(bench: ModuleType) -> None:
    losses = [[1.0, 2.0]]
    found = {
        bench.EAGER: {"seconds": 1.2, "losses": losses},
        "ours, plain": {"seconds": 0.4, "losses": losses},
        "ours, graph": {"seconds": 0.1, "losses": [[1.0, 2.1]]},
        "ours, compiled": {"failed": "no"},
    }
    faster, *equal = bench.bars(bench.ROWS["mlp"], found)
    assert faster.value == pytest.approx(12.0)
    assert [bar.met() for bar in equal] == [True, False]
    assert math.isnan(bench.bars(bench.ROWS["mlp"], {})[0].value)


def test_losses_that_are_no_numbers_are_not_equal(bench: ModuleType) -> None:
    assert bench.difference([[math.nan]], [[1.0]]) == math.inf
    assert math.isnan(bench.difference([], []))


def test_memory_is_one_base_the_adapters_and_the_activations(bench: ModuleType) -> None:
    eager = {"peak_bytes": 90, "held_bytes": 80}
    ours = {"base_bytes": 60, "adapter_bytes": 2, "members": 5, "peak_bytes": 150}
    assert bench.memory(ours, eager) == pytest.approx(1.0)
