"""The page of results names what was missed: whatever a committed table of a bench says about its bars."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLES = sorted((ROOT / "bench" / "results").glob("*.json"))


def test_every_bench_with_a_missed_bar_is_among_what_was_missed() -> None:
    page = (ROOT / "docs" / "results.md").read_text()
    missed = page[page.index("## What was missed") : page.index("## On two cores")]
    named = set(re.findall(r"bench/(\w+)\.py", missed))
    with_misses = {
        table.stem.partition("-")[0]
        for table in TABLES
        if not all(bar["met"] for bar in json.loads(table.read_text())["bars"])
    }
    assert TABLES
    assert with_misses - named == set()


def test_every_table_is_of_a_bench_that_is_there() -> None:
    assert {table.stem.partition("-")[0] for table in TABLES} <= {path.stem for path in (ROOT / "bench").glob("*.py")}
