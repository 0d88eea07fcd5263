"""The page about cascades: its programs run and say what they are to say."""

import re
from pathlib import Path

TEXT = (Path(__file__).parents[2] / "docs" / "cascades.md").read_text()


def test_its_programs_run(capsys):
    names = {}
    for text in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
        exec(text, names)
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("[('plain',)]")
    assert said[-1] == "20"
