"""A technique that an installed package brings, in one file: it is tried, planned, run in a worker and shown.

The file holds its descriptor and what runs it; besides, there is only the entry point that names it.
"""

import os
from pathlib import Path

import pytest

from dovetail.control import open_result
from dovetail.store import Store
from tests.cli.processes import ENVIRONMENT, HOME, dovetail

# As quick as resident, but it says that it is a hundred times quicker; so whoever can choose it does.
TECHNIQUE = """
import dataclasses

from dovetail.planning import TechniqueSpec, Trial
from dovetail.planning.techniques import resident
from dovetail.train.base import Technique
from dovetail.train.resident import RESIDENT


def option(profile, cluster):
    made = resident.option(profile, kind=cluster.kind(profile.kind))
    return dataclasses.replace(made, technique="hasty", step_seconds=(made.step_seconds[0] / 100,), knobs=profile.knobs)


def trials(evidence, family, kind):
    if evidence.of(family=family, kind=kind.name, technique="resident", count=1):
        yield Trial(family=family, technique="hasty", kind=kind.name, count=1, knobs={"haste": 3})


def ideal(known, trial, options):
    return dataclasses.replace(known, technique="hasty", step_seconds=(known.step_seconds[0] / 100,))


class Hasty(Technique):
    name, exactness = "hasty", RESIDENT.exactness

    def refuse(self, members):
        return RESIDENT.refuse(members)

    def open(self, members, *, device, threads, knobs):
        assert knobs == {"haste": 3}
        return RESIDENT.open(members, device=device, threads=threads)


HASTY = Hasty()
SPEC = TechniqueSpec(
    name="hasty",
    runtime="hasty_package:HASTY",
    option=option,
    trials=trials,
    ideal=ideal,
    knobs={"haste": (3,)},
    trial_knobs=("haste",),
)
"""
SWEEP = """
import time
import torch
import dovetail as dt

def line(seed=0):
    model = torch.nn.Linear(2, 1)

    def loss(model, batch):
        time.sleep(0.05)
        return model(batch).square().mean()

    return dt.Training(model=model, batches=[torch.ones(4, 2)], loss=loss,
                       optimizer=torch.optim.SGD(model.parameters(), lr=0.1))

workload = dt.grid(line, steps=200, name="lines")
"""


def install(folder: Path) -> dict[str, str]:
    """The package as an installer leaves it; gives an environment in which it is found."""
    (folder / "hasty_package.py").write_text(TECHNIQUE)
    metadata = folder / "hasty_package-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: hasty-package\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[dovetail.techniques]\nhasty = hasty_package:SPEC\n")
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join(paths)}


@pytest.mark.process
@pytest.mark.timeout(240)
def test_an_installed_technique_is_tried_planned_run_and_shown(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    environment = install(tmp_path / "package")
    (tmp_path / "sweep.py").write_text(SWEEP)
    ran = dovetail("run", "sweep.py", "--quiet", cwd=tmp_path, env=environment)
    assert ran.code == 0, ran.err
    with Store(tmp_path / HOME) as store:
        events = [event for _, event in store.events()]
        (_, _, plan), *_ = store.plans()
    assert "hasty" in [event.profile.technique for event in events if event.kind == "measured"]
    assert plan.schedule is not None
    assert [placement.option.technique for placement in plan.schedule.placements] == ["hasty"]
    (started,) = [event.option for event in events if event.kind == "started"]
    assert (started.technique, started.knobs) == ("hasty", {"haste": 3})
    # Where it is not installed, what came of it can still be read.
    (task,) = open_result(tmp_path / HOME).tasks
    assert (task.status, task.step) == ("finished", 200)
    assert dovetail("report", "--output", "page.html", cwd=tmp_path).code == 0
    assert "hasty" in (tmp_path / "page.html").read_text()
