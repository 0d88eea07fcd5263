"""The bench of spot markets runs; the bars on record are those of its rows."""

import dataclasses
import importlib
import json
from pathlib import Path

import pytest

from .test_quick import ROOT, run


@pytest.mark.skipif(not (Path(ROOT).parent / "shared" / "data").exists(), reason="../shared/data is not there")
def test_spot_prints_its_table_at_a_small_size() -> None:
    done = run("bench/spot.py", "--quick")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "met     deadlines missed: 0" in done.stdout


def test_the_bars_on_record_are_those_of_the_rows_on_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(ROOT) / "bench")
    found = json.loads((Path(ROOT) / "bench" / "results" / "spot.json").read_text())
    rows = [row for row in found["rows"] if "charged_over_single" in row]
    bars = importlib.import_module("spot").price_bars(rows)
    assert len(rows) == 27
    assert [{**dataclasses.asdict(bar), "met": bar.met()} for bar in bars] == found["bars"][: len(bars)]
    (charged,) = [bar for bar in bars if bar.name.startswith("worst gain with moves charged over the single choice")]
    assert charged.value == min(row["charged_over_single"] for row in rows)
    assert charged.met()
