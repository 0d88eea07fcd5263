"""The page about routing: its program runs and says what it is to say."""

import re
from pathlib import Path

TEXT = (Path(__file__).parents[2] / "docs" / "routing.md").read_text()


def test_its_program_runs(capsys):
    (text,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    exec(text, {})
    said = capsys.readouterr().out.splitlines()
    assert said == ["large", "['small', 'large']", "['small', 'small', 'large']", "router"]
