import time
from pathlib import Path

import pytest

from dovetail.control import Controller, loop
from dovetail.describe import load_workload
from dovetail.store import Store
from dovetail.vocabulary import Cluster, Kind
from tests.engines.forking import forking_engine

SWEEP = """
import dovetail as dt

def hangs():
    import time, torch
    model = torch.nn.Linear(1, 1)
    model.register_buffer("steps", torch.zeros(()))

    def loss(model, batch):
        model.steps += 1
        while model.steps > 230:  # past what a trial takes, it never comes back
            time.sleep(1)
        return model(batch).square().mean()

    return dt.Training(model=model, batches=[torch.ones(1, 1)], loss=loss,
                       optimizer=torch.optim.SGD(model.parameters(), lr=0.1))

workload = dt.grid(hangs, steps=10_000, name="hanging")
"""


@pytest.mark.process
def test_a_worker_that_hangs_does_not_hold_up_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "GRACE_SECONDS", 2.0)
    (tmp_path / "sweep.py").write_text(SWEEP)
    cluster = Cluster.uniform(Kind(name="cpu", processor="cpu"))
    running_since: list[float] = []

    def observe(found: Controller) -> None:
        (one,) = found.progress.values()
        if one.status == "running":
            running_since.append(time.monotonic())
        if running_since and running_since[-1] - running_since[0] > 2:  # it hangs by now
            found.post("stop", reason="enough")

    with Store(tmp_path / "store", write=True) as store:
        engine = forking_engine(cluster, home=tmp_path / "store")
        controller = Controller(
            load_workload(str(tmp_path / "sweep.py")), cluster=cluster, store=store, engine=engine, observe=observe
        )
        controller.reconcile()
        controller.measure()
        controller.run()
        engine.close()
        reasons = [event.reason for _, event in store.events() if event.kind in ("lost", "stopped")]
    assert controller.phase == "stopped"
    assert len(reasons) == 1
    assert "it did not stop within 2 s" in reasons[0]
