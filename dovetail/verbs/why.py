"""What `dovetail why` answers: of a store, why tasks failed, diverged, were halved or ran slower, and what the best or
worst have in common; of a file, what its outliers have in common."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.store import Store
from dovetail.verbs.sweep_table import SweepTable, read_sweep
from dovetail.vocabulary import DovetailError
from dovetail.watch.criteria import Criteria, Explanations, NoUsableAttribute
from dovetail.watch.explain import explain_table, read_outliers
from dovetail.watch.tables import TableReader

if TYPE_CHECKING:
    from dovetail.watch.measure_shifts import ShiftExplanations

# Below so many, whatever they have in common, so have others.
_FEW = 2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WhyAnswer:
    """A question about tasks, or rows, and what was found; `noun` is what those that stand out are called, and
    `unanswered` says why nothing could be looked at, where that is so."""

    question: str
    noun: str
    rows: str
    found: "Explanations | ShiftExplanations"
    unanswered: str = ""

    def lines(self) -> list[str]:
        """The answer in words."""
        if self.unanswered:
            return [self.unanswered]
        lines = self.found.lines(outliers=self.noun, rows=self.rows)
        if isinstance(self.found, Explanations):
            return lines or ["nothing that they have in common is beyond chance"]
        return lines or ["no combination changed by more than chance"]

    def record(self) -> dict[str, Any]:
        """As plain data."""
        figures = [
            {**dataclasses.asdict(each), "values": dict(each.values), "combination": each.combination}
            for each in self.found.found
        ]
        return {
            "question": self.question,
            "outliers": self.found.outliers,
            "rows": self.found.rows,
            "lines": self.lines(),
            "found": figures,
            "notes": list(self.found.notes),
        }


def why_store(
    store: Store,
    *,
    workload: str | None = None,
    metric: str | None = None,
    worst: str | None = None,
    best: str | None = None,
    where: str | None = None,
    between: Sequence[str] = (),
    on: Sequence[str] | None = None,
    criteria: Criteria | None = None,
) -> list[WhyAnswer]:
    """Each question about a store's tasks that there is something to answer to: those that are asked, or all outcomes
    that some tasks have and others have not."""
    table = read_sweep(store, workload=workload)
    criteria = criteria or Criteria()
    if between or where is not None or metric is not None or worst is not None or best is not None:
        return [
            _asked(table, metric=metric, worst=worst, best=best, where=where, between=between, on=on, criteria=criteria)
        ]
    return why_table(table, on=on, criteria=criteria)


def _asked(
    table: SweepTable,
    *,
    metric: str | None,
    worst: str | None,
    best: str | None,
    where: str | None,
    between: Sequence[str],
    on: Sequence[str] | None,
    criteria: Criteria,
) -> WhyAnswer:
    if between:
        return _between(table, between, on, criteria)
    if where is not None:
        outliers = read_outliers(TableReader(table.columns()), where).tolist()
        return _answer(table, f"what do tasks with {where} have in common?", "such tasks", outliers, None, on, criteria)
    return _of_metric(table, metric, worst=worst, best=best, on=on, criteria=criteria)


def why_table(table: SweepTable, *, on: Sequence[str] | None = None, criteria: Criteria) -> list[WhyAnswer]:
    """Every outcome that some of these tasks have and others have not."""
    answers = []
    for name, (outliers, of) in table.outcomes().items():
        count, total = sum(a and b for a, b in zip(outliers, of, strict=True)), sum(of)
        if _FEW <= count < total:
            question, noun = _words(name)
            try:
                answers.append(_answer(table, question, noun, outliers, of, on, criteria))
            except NoUsableAttribute as error:  # of these tasks; those of another question may differ
                nothing = Explanations(found=(), outliers=count, rows=total, order=0, tests=0.0)
                answers.append(
                    WhyAnswer(question=question, noun=noun, rows="tasks", found=nothing, unanswered=str(error))
                )
    return answers


def _words(outcome: str) -> tuple[str, str]:
    """The question about an outcome, and what tasks that have it are called.

    >>> _words("failed: out of memory")
    ('why did tasks fail: out of memory?', 'such failures')
    """
    known = {"failed": ("why did tasks fail?", "failures"), "diverged": ("why did tasks diverge?", "that diverged")}
    if cause := outcome.partition(": ")[2]:
        return f"why did tasks fail: {cause}?", "such failures"
    return known.get(outcome, (f"why were tasks {outcome}?", outcome))


def why_file(
    path: Path,
    *,
    outliers: str,
    on: Sequence[str] | None,
    ranges: Sequence[str] = (),
    measure: str | None = None,
    criteria: Criteria,
) -> WhyAnswer:
    """What the outliers of a file of rows have in common, or how a measure changed towards them."""
    reader = TableReader(read_file(path))
    found = explain_table(reader, outliers=outliers, on=on, ranges=ranges, measure=measure, criteria=criteria)
    question = f"what do rows with {outliers} have in common?"
    if measure is not None:
        question = f"who changed the {criteria.ratio.removesuffix('_shift')} of {measure} in rows with {outliers}?"
    return WhyAnswer(question=question, noun="outliers", rows="rows", found=found)


def why_windows(
    reference: Path,
    current: Path,
    *,
    measure: str,
    on: Sequence[str] | None,
    ranges: Sequence[str] = (),
    criteria: Criteria,
) -> WhyAnswer:
    """How a measure changed from one file of rows to another. Columns that only one of them has are left out."""
    import pyarrow as pa

    before, after = read_file(reference), read_file(current)
    shared = [name for name in before.column_names if name in after.column_names]
    if measure not in shared:
        raise DovetailError(f"a measure must be a column of both tables, which share {shared}, got {measure!r}.")
    try:
        joined = pa.concat_tables([before.select(shared), after.select(shared)], promote_options="permissive")
    except pa.ArrowException as error:
        raise DovetailError(
            f"columns of {reference} and {current} must have the same types: {error}. Turn them into one type."
        ) from None
    mask = [False] * len(before) + [True] * len(after)
    found = explain_table(TableReader(joined), outliers=mask, on=on, ranges=ranges, measure=measure, criteria=criteria)
    question = f"who changed the {criteria.ratio.removesuffix('_shift')} of {measure} from {reference} to {current}?"
    return WhyAnswer(question=question, noun="rows", rows="rows", found=found)


def read_file(path: Path) -> Any:
    """A table of Parquet, Arrow, CSV or lines of JSON, by its name."""
    name = path.name.lower().removesuffix(".gz")
    if not path.is_file():
        raise DovetailError(f"a table must be a file; there is none at {path}.")
    try:
        import pyarrow as pa
        from pyarrow import csv, feather, json, parquet
    except ImportError:
        raise DovetailError(
            "a file of rows is read by pyarrow, which is not installed: pip install 'dovetail[parquet]'."
        ) from None
    ways = {".parquet": parquet.read_table, ".csv": csv.read_csv, ".feather": feather.read_table}
    ways |= {".arrow": feather.read_table, ".jsonl": json.read_json, ".ndjson": json.read_json}
    suffix = next((each for each in ways if name.endswith(each)), None)
    if suffix is None:
        raise DovetailError(f"a table must be a file of {', '.join(ways)}, got {path.name!r}.")
    try:
        return ways[suffix](str(path))
    except (pa.ArrowException, OSError) as error:
        raise DovetailError(f"{path} must be a table in the format of {suffix}; reading it failed: {error}") from None


def _answer(
    table: SweepTable,
    question: str,
    noun: str,
    outliers: Sequence[bool],
    of: Sequence[bool] | None,
    on: Sequence[str] | None,
    criteria: Criteria,
    *,
    aside: Sequence[str] = (),
) -> WhyAnswer:
    kept = [number for number in range(len(table.tasks)) if of is None or of[number]]
    columns = {name: [values[number] for number in kept] for name, values in _causes(table, aside, on).items()}
    reader = TableReader(columns)
    found = explain_table(
        reader, outliers=[outliers[n] for n in kept], on=on, ranges=_measures(columns), criteria=criteria
    )
    # Of a store, what is the same for all tasks goes without saying; a parameter that could explain nothing does not.
    notes = tuple(note for note in found.notes if on is not None or "left out" not in note or "another value" in note)
    return WhyAnswer(question=question, noun=noun, rows="tasks", found=dataclasses.replace(found, notes=notes))


def _causes(table: SweepTable, aside: Sequence[str], on: Sequence[str] | None) -> Mapping[str, list[Any]]:
    """What a task was given and how it ran, without what comes of an outcome rather than before it."""
    if on is not None:
        return table.columns()
    varied = {
        name: values
        for name, values in table.attributes.items()
        if name not in aside and len({str(value) for value in values}) > 1
    }
    if not varied:
        raise NoUsableAttribute(
            "tasks must differ in something to explain by; all of these have the same parameters and ran alike."
        )
    return varied


def _measures(columns: Mapping[str, Sequence[Any]]) -> list[str]:
    """The columns of numbers with more than two values: parameters are amounts, of which ranges mean something."""
    found = []
    for name, values in columns.items():
        if name == "seed":  # a number that is a name
            continue
        there = [value for value in values if value is not None]
        if there and all(isinstance(v, int | float) and not isinstance(v, bool) for v in there) and len(set(there)) > 2:
            found.append(name)
    return found


def _of_metric(
    table: SweepTable, metric: str | None, *, worst: str | None, best: str | None, on: Any, criteria: Criteria
) -> WhyAnswer:
    known = sorted(table.metrics)
    if metric is None or metric not in table.metrics:
        raise DovetailError(f"--metric must be one of {', '.join(known) or 'none, as there are none'}, got {metric!r}.")
    if (worst is None) == (best is None):
        raise DovetailError("--metric must come with one of --worst 10% and --best 5.")
    values = table.metrics[metric]
    there = [number for number, value in enumerate(values) if value is not None]
    is_max = (table.goal(metric) == "max") == (best is not None)

    def place(number: int) -> float:
        value = values[number]
        assert value is not None
        if not math.isfinite(value):
            return -math.inf if best is None else math.inf  # worst of all
        return -value if is_max else value

    count = _count_of(worst or best or "", len(there), option="--worst" if best is None else "--best")
    chosen = set(sorted(there, key=place)[:count])
    side = "worst" if best is None else "best"
    question = f"what do the {count} tasks with the {side} {metric} have in common?"
    mask = [number in chosen for number in range(len(values))]
    return _answer(table, question, f"of the {side}", mask, [value is not None for value in values], on, criteria)


def _count_of(text: str, total: int, *, option: str) -> int:
    """How many `10%` or `5` are.

    >>> _count_of("10%", 200, option="--worst"), _count_of("5", 200, option="--best")
    (20, 5)
    """
    try:
        found = math.ceil(float(text[:-1]) / 100 * total - 1e-9) if text.endswith("%") else int(text)
    except ValueError:
        found = 0
    if not 0 < found < total:
        raise DovetailError(
            f"{option} must be a part, such as 10%, or a number, such as 5, and leave some of {total} tasks "
            f"out, got {text!r}."
        )
    return found


def _between(table: SweepTable, between: Sequence[str], on: Any, criteria: Criteria) -> WhyAnswer:
    """How the tasks of one workload that went wrong differ from those of another."""
    known = sorted(set(table.attributes["workload"]))
    if len(between) != 2 or between[0] == between[1] or not set(between) <= set(known):
        raise DovetailError(
            f"--between must be two workloads of the store, which has {', '.join(known)}, got {' '.join(between)!r}."
        )
    first, second = between
    names = table.attributes["workload"]
    outliers = [name == second for name in names]
    question = f"what have tasks of {second} that tasks of {first} have not?"
    return _answer(
        table,
        question,
        f"tasks of {second}",
        outliers,
        [name in between for name in names],
        on,
        criteria,
        aside=("workload",),
    )
