"""What every bench shares: a table with machine, date and versions, results on disk, and bars that can be missed."""

import dataclasses
import datetime
import json
import platform
from pathlib import Path
from typing import Any

from rich.table import Table

from dovetail.describe import versions
from dovetail.engines import detect
from dovetail.verbs.console import Console

RESULTS = Path(__file__).parent / "results"


@dataclasses.dataclass(frozen=True)
class Bar:
    """A figure that must be at most or at least something."""

    name: str
    value: float
    most: float | None = None
    least: float | None = None

    def met(self) -> bool:
        """NaN meets no bar."""
        if self.most is not None and not self.value <= self.most:
            return False
        return self.least is None or self.value >= self.least

    def __str__(self) -> str:
        limit = f"at most {self.most:g}" if self.most is not None else f"at least {self.least:g}"
        return f"{self.name}: {self.value:.4g} ({limit})"


def finish(
    name: str, rows: list[dict[str, Any]], bars: list[Bar], *, check: bool, quick: bool, part_by: str = ""
) -> int:
    """Print the table, write `results/<name>.json`, and give the exit code. A quick run writes nothing. Of a bench that
    takes longer than a machine is left alone, parts may be run one by one: with `part_by`, the column that names what a
    row is of, rows and bars of others stay as they were, each with its date and machine."""
    console = Console()
    table = Table(title=f"{name}, {machine()}", title_justify="left")
    for column in dict.fromkeys(key for row in rows for key in row):
        table.add_column(column.replace("_", " "))
    for row in rows:
        table.add_row(*(_cell(row.get(column)) for column in dict.fromkeys(key for r in rows for key in r)))
    console.print(table)
    for bar in bars:
        console.print(("met     " if bar.met() else "MISSED  ") + str(bar), highlight=False)
    if not quick:
        found: dict[str, Any] = {"date": today(), "machine": machine(), "rows": rows}
        found["bars"] = [{**dataclasses.asdict(bar), "met": bar.met()} for bar in bars]
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"{name}.json"
        if part_by:
            found = _joined(json.loads(path.read_text()) if path.exists() else {}, found, part_by)
        path.write_text(json.dumps(found, indent=2) + "\n")
    return 1 if check and not all(bar.met() for bar in bars) else 0


def _joined(before: dict[str, Any], found: dict[str, Any], part_by: str) -> dict[str, Any]:
    """What was found before, with what was found now in the place of what it is of."""
    rows, earlier = _dated(found), _dated(before)
    of = {row[part_by] for row in rows}
    old = [row for row in earlier if row[part_by] not in of]
    kept = {row[part_by] for row in old}
    bars = [bar for bar in before.get("bars", ()) if bar["name"].partition(",")[0] in kept]
    return {"rows": [*old, *rows], "bars": [*bars, *found["bars"]]}


def _dated(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Its rows, each with when and where it was measured."""
    return [{"measured": found.get("machine"), **row} for row in found.get("rows", ())]


def need(data: Path) -> None:
    """End with 1 where the data of others that a bench reads are not there: nothing measured is nothing met."""
    if not data.exists():
        raise SystemExit(f"this bench must find {data.name} at {data}; it is not there. Nothing was measured.")


def machine() -> str:
    """Date, hardware and versions in one line."""
    cluster = detect()
    devices = " + ".join(f"{count} × {kind.name}" for kind, count in cluster.counts())
    memory = cluster.nodes[0].memory_bytes / (1 << 30)
    return f"{today()}, {devices}, {memory:.0f} GiB, {platform.machine()}, {versions()}"


def today() -> str:
    """The date, in UTC."""
    return datetime.datetime.now(tz=datetime.UTC).date().isoformat()


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:,.4g}" if isinstance(value, float) else str(value)
