"""The bench of spot markets runs."""

from pathlib import Path

import pytest

from .test_quick import ROOT, run


@pytest.mark.skipif(not (Path(ROOT).parent / "shared" / "data").exists(), reason="../shared/data is not there")
def test_spot_prints_its_table_at_a_small_size() -> None:
    done = run("bench/spot.py", "--quick")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "met     deadlines missed: 0" in done.stdout
