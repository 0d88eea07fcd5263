"""The page about feeds: its program trains and resumes exactly."""

import re
from pathlib import Path

from dovetail.describe import load_workload
from tests.docs.test_tutorial import check

TEXT = (Path(__file__).parents[2] / "docs" / "feeds.md").read_text()


def test_its_program_trains_and_resumes(tmp_path):
    (text,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    (tmp_path / "digits.py").write_text(text)
    workload = load_workload(str(tmp_path / "digits.py"))
    assert len(workload.tasks) == 2
    check(workload.tasks[0])
