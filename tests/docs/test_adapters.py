"""The page about adapters: its programs train, resume exactly, and can be fused."""

import re
import warnings
from pathlib import Path

import pytest

from dovetail.describe import load_workload
from dovetail.train import FUSE, SessionMember
from dovetail.train.build import build
from tests.docs.test_tutorial import check

TEXT = (Path(__file__).parents[2] / "docs" / "adapters.md").read_text()
PROGRAMS = {text.split()[1]: text for text in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)}


@pytest.mark.parametrize("name", ["lit.py", "hug.py"])
def test_its_programs_train_resume_and_fuse(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text(PROGRAMS[name])
    workload = load_workload(str(tmp_path / name))
    assert len(workload.tasks) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Lightning, on the machine's cores
        check(workload.tasks[0])
        assert FUSE.refuse([SessionMember(training=build(task), seed=0) for task in workload.tasks]) is None
