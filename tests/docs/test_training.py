"""The page about training: its programs train and resume exactly."""

import re
from pathlib import Path

from dovetail.describe import load_workload
from tests.docs.test_tutorial import check

TEXT = (Path(__file__).parents[2] / "docs" / "training.md").read_text()


def test_its_programs_train_and_resume(tmp_path):
    first, more = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    for number, text in enumerate((first, first + more)):
        (tmp_path / f"digits{number}.py").write_text(text)
        workload = load_workload(str(tmp_path / f"digits{number}.py"))
        assert len(workload.tasks) == 2
        check(workload.tasks[0])
