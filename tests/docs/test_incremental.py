"""The page about answers in parts: its programs run and say what they are to say."""

import re
from pathlib import Path

TEXT = (Path(__file__).parents[2] / "docs" / "incremental.md").read_text()


def test_its_programs_run(capsys):
    names = {}
    for text in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
        exec(text, names)
    said = capsys.readouterr().out.splitlines()
    assert said[0].endswith("8 x 8 places")
    assert 0 < int(said[1].split("%")[0]) < 30
    assert said[2].endswith("computed in parts")
