"""The page about streams and drift: its programs run and say what they are to say."""

import re
from pathlib import Path

TEXT = (Path(__file__).parents[2] / "docs" / "drift.md").read_text()


def test_its_programs_run(capsys, tmp_path):
    names = {}
    for text in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
        exec(text.replace("/tmp", str(tmp_path)), names)
    said = capsys.readouterr().out.splitlines()
    for line in re.search(r"```\n(region.*?)```", TEXT, re.DOTALL).group(1).splitlines():
        assert line in said
    assert said[-2] == "0 10500 {'region': 'eu', 'version': 3}"
    assert said[-1].startswith("region = eu and version = 3: ")
    assert names["again"].events == names["monitor"].events == 100_000
