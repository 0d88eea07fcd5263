"""The page about frames: its programs run and say what they are to say."""

import re
from pathlib import Path

import pytest

TEXT = (Path(__file__).parents[2] / "docs" / "frames.md").read_text()


@pytest.mark.parametrize("number", range(len(re.findall(r"```python\n", TEXT))))
def test_its_programs_run(number, capsys):
    exec(re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)[number], {})
    said = capsys.readouterr().out
    if number == 0:
        assert said.startswith("(100000,)\nprice: ")
        assert "in 1 loop" in said
