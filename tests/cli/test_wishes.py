"""What is wanted of a whole workload, asked for on the command line: objective, weights, techniques, device memory."""

import pytest

from dovetail.store import Store
from tests.cli.processes import HOME, dovetail, rows, write
from tests.cli.test_daemon import PROGRAMS, in_process

SWEEP = """
import dovetail as dt

tasks = [dt.task("programs.py:line", name=name, steps=steps) for name, steps in (("long", 90), ("short", 30))]
workload = dt.workload(tasks)
limited = dt.workload(tasks, objective="mean", techniques="-fuse")
"""


@pytest.fixture
def folder(tmp_path):
    return write(tmp_path, programs=PROGRAMS, sweep=SWEEP)


@pytest.mark.process
def test_a_run_follows_the_objective_it_is_told(folder):
    wishes = ("--objective", "weighted", "--weight", "short=3", "--techniques", "-fuse,-replicate")
    found = dovetail("run", "sweep.py", *wishes, "--quiet", cwd=folder)
    assert found.code == 0, found.err
    assert {row["status"] for row in rows(folder).values()} == {"finished"}
    with Store(folder / HOME) as opened:
        objectives = {plan.objective for _, _, plan in opened.plans()}
    assert objectives == {"weighted"}


@pytest.mark.process
@pytest.mark.parametrize("command", ["run", "plan"])
@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        (("--objective", "mena"), "got 'mena'; did you mean 'mean'?"),
        (("--weight", "short=3"), "weights belong to objective 'weighted', got them with 'makespan'"),
        (("--techniques", "-fues"), "got 'fues'; did you mean 'fuse'?"),
        (("--techniques", "resident,-fuse"), "must either all be allowed"),
        (("--allow", "state-7bit"), "must be one of ['attention-masks', "),
        (("--device-memory", "much"), "device memory: bytes must be a number with a unit"),
        (("--device-memory", "24GiB"), "can be limited for accelerators only; this cluster has none"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(folder, command, wishes, message, monkeypatch):
    monkeypatch.setattr("dovetail.engines.detection._accelerators", list)
    found = in_process(command, "sweep.py", *wishes, cwd=folder)
    assert found.code == 2
    assert message in found.err
    assert len(found.err.strip().splitlines()) == 1


def test_a_daemon_shares_what_it_was_started_with(folder):
    found = in_process("submit", "sweep.py:limited", cwd=folder)
    assert found.code == 2
    assert "'sweep:limited' has techniques, objective of its own" in found.err
    refused = in_process("daemon", "--techniques", "resedent", cwd=folder)
    assert (refused.code, "did you mean 'resident'?" in refused.err) == (2, True)


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        ("lots", "--keep must be a number of checkpoints, as in --keep 2, or a metric and a tolerance"),
        ("accuracy=", "--keep must be a name and a number, as in --keep accuracy=0.002"),
        ("accuracy=-1", "a tolerance (--keep, keep=) must be a number above 0"),
        ("speed=0.1", "whose name says whether more of it is better"),
    ],
)
def test_what_is_no_tolerance_is_refused_in_one_line(folder, keep, message):
    found = in_process("run", "sweep.py", "--keep", keep, cwd=folder)
    assert found.code == 2
    assert message in found.err
    assert len(found.err.strip().splitlines()) == 1
