"""`dovetail logs`: what each task's program has printed, apart from what the others have."""

import os

import pytest

from dovetail.engines.worker import writing_to_log
from tests.cli.processes import HOME, begin, dovetail, end, rows, until, write

PROGRAM = """
import os
import time
import torch
import dovetail as dt


def line(rate=0.1, fail=False, pause=0.0):
    print(f"building {rate}")
    model = torch.nn.Linear(1, 1)
    x = torch.linspace(-1, 1, 16).unsqueeze(1)

    def loss(model, batch):
        print(f"step of {rate}", flush=True)
        os.system(f"echo from a child of {rate}")
        time.sleep(pause)
        return (model(batch) - 3 * batch).square().mean()

    def evaluate(model):
        if fail:
            raise LookupError("no scores")
        return {"score": 1.0}

    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    return dt.Training(model=model, batches=[x], loss=loss, optimizer=optimizer, evaluate=evaluate, evaluate_every=3)


workload = dt.join(
    dt.grid(line, rate=[0.1, 0.2], steps=3), dt.grid(line, rate=[0.3], fail=True, steps=3), name="logged"
)
slow = dt.grid(line, rate=[0.5], pause=0.05, steps=100_000)
"""


def test_an_order_writes_to_its_own_log_and_an_empty_one_is_removed(tmp_path, capfd):
    log = tmp_path / "order.log"
    with writing_to_log(str(log)):
        os.write(1, b"inside\n")  # sys.stdout is pytest's own here
        os.write(2, b"and here\n")
    os.write(1, b"outside\n")
    assert log.read_text().splitlines() == ["inside", "and here"]
    assert "outside" in capfd.readouterr().out
    with (
        writing_to_log(str(tmp_path / "other.log")),
        writing_to_log(None),
        writing_to_log(str(tmp_path / "no" / "log")),
    ):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["order.log"]


@pytest.mark.process
def test_each_task_has_a_log_of_its_own_and_failures_say_what_raised_and_where(tmp_path):
    write(tmp_path, sweep=PROGRAM)
    found = dovetail("run", "sweep.py", "--exact", "--techniques", "resident", cwd=tmp_path)
    assert found.code == 1, found.err
    assert "evaluation, sweep.py:" in found.out
    assert "in evaluate)" in found.out
    assert "line rate=0.3 failed, evaluation:" in found.out
    assert 'raise LookupError("no scores")' in found.out  # the traceback itself
    one = dovetail("logs", "rate=0.1", cwd=tmp_path)
    assert one.code == 0, one.err
    assert one.out.count("step of 0.1") == one.out.count("from a child of 0.1") == 3
    assert "building 0.1" in one.out
    assert "0.2" not in one.out
    assert "attempt 1 finished at step 3" in one.out
    broken = dovetail("logs", rows(tmp_path)["line rate=0.3"]["id"][:8], cwd=tmp_path)
    assert "LookupError: no scores" in broken.out
    assert "── as it was built or measured, failed: task 'line rate=0.3' raised LookupError" in broken.out
    both = dovetail("logs", "rate=0.[12]", cwd=tmp_path)
    assert "── line rate=0.1, attempt 1" in both.out
    assert "step of 0.2" in both.out
    assert rows(tmp_path)["line rate=0.3"]["phase"] == "evaluation"


@pytest.mark.process
def test_a_log_is_followed_until_its_task_has_ended(tmp_path):
    write(tmp_path, sweep=PROGRAM)
    process = begin("run", "sweep.py:slow", "--save-seconds", "1", cwd=tmp_path)
    try:
        until(lambda: list((tmp_path / HOME / "logs").glob("order-*.log")), what="the first step")
        following = begin("logs", "--follow", "rate=0.5", cwd=tmp_path)
        try:
            told = [following.stdout.readline() for _ in range(9)]
            assert dovetail("cancel", "line*", cwd=tmp_path).code == 0
        finally:
            followed = end(following)
    finally:
        ended = end(process)
    assert followed.code == 0, followed.err
    assert any("step of 0.5" in line for line in told)
    assert ended.code == 0, ended.err
