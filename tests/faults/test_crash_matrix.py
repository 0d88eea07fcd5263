"""Every place that writes: killed before, in and after each system call that changes a file, and told that the disk is
full at each. What was there before is there still, or what was to be written is, whole; and the next one goes on. Of a
store, which makes hundreds of such calls, some are drawn, others in each run; all are tried among the slow tests."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.system_calls import ptrace_works

SITES = ("checkpoint", "fence", "new store", "store", "report", "tensorboard", "export", "program")


def interrupt(most):
    """What was found of all sites, by two processes side by side: importing torch takes longer than most of them."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    words, root = (
        [sys.executable, "-W", "ignore", "-m", "tests.faults.write_sites", str(most)],
        Path(__file__).parents[2],
    )
    first = ("new store", "checkpoint", "fence")  # in which a new store makes as many calls as most others together
    halves = [first, tuple(site for site in SITES if site not in first)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    running = [subprocess.Popen([*words, *half], cwd=root, env=environment, **pipes) for half in halves]
    answers = [(process.communicate(), process.returncode) for process in running]
    for (_, errors), code in answers:
        assert code == 0, errors
    return {site: one for (output, _), _ in answers for site, one in json.loads(output).items()}


@pytest.fixture(scope="module", params=[80, pytest.param(10_000, marks=pytest.mark.slow)])
def found(request):
    return interrupt(request.param)


@pytest.mark.process
@pytest.mark.skipif(not ptrace_works(), reason="a process must be allowed to trace its child here")
@pytest.mark.parametrize("site", SITES)
def test_nothing_is_half_written(found, site: str) -> None:
    assert sorted(found) == sorted(SITES)
    calls, ways = found[site]["calls"], found[site]["ways"]
    assert {"open", "rename"} & set(calls)
    assert ways > 2 * len(calls) - 8
    assert not found[site]["wrong"], "\n".join(found[site]["wrong"])
