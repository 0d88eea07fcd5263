"""Every place that writes: killed before, in and after each system call that changes a file, and told that the disk is
full at each. What was there before is there still, or what was to be written is, whole; and the next one goes on."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.system_calls import ptrace_works

SITES = ("checkpoint", "fence", "new store", "store", "report", "tensorboard", "export", "program")


@pytest.fixture(scope="module")
def found():
    """What was found of all sites, by one process: importing torch takes longer than most of them."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-W", "ignore", "-m", "tests.faults.write_sites"]
    root = Path(__file__).parents[2]
    done = subprocess.run(words, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.process
@pytest.mark.skipif(not ptrace_works(), reason="a process must be allowed to trace its child here")
@pytest.mark.parametrize("site", SITES)
def test_nothing_is_half_written(found, site: str) -> None:
    assert sorted(found) == sorted(SITES)
    calls, ways = found[site]["calls"], found[site]["ways"]
    assert {"open", "rename"} & set(calls)
    assert ways > 2 * len(calls) - 8
    assert not found[site]["wrong"], "\n".join(found[site]["wrong"])
