"""What models answered and what came of it: for each query and model its quality, its price and its seconds.

A file has one row for each query and model: `query`, `model`, `quality` (0 to 1; empty where nobody judged), `price`,
and where known `seconds`, `domain`, `answer` and `id`. Rows of one id and model, or without ids of one query and model,
are one outcome told in parts. Does not know how qualities are estimated.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.vocabulary import DovetailError

Numbers = NDArray[np.float64]
NEEDED = ("query", "model", "quality", "price")
KNOWN = (*NEEDED, "seconds", "domain", "answer", "id")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class OutcomeTable:
    """Queries by models. `quality`, `price` and `seconds` are NaN where nobody knows; `domains` and `answers` may be
    missing as a whole.

    >>> table = OutcomeTable.of([
    ...     {"query": "2 + 2?", "model": "small", "quality": 1.0, "price": 0.01},
    ...     {"query": "2 + 2?", "model": "large", "quality": 1.0, "price": 0.30},
    ... ])
    >>> table.models, table.price.tolist()
    (('small', 'large'), [[0.01, 0.3]])
    """

    queries: tuple[str, ...]
    models: tuple[str, ...]
    quality: Numbers
    price: Numbers
    seconds: Numbers
    domains: tuple[str, ...] | None = None
    answers: tuple[tuple[str | None, ...], ...] | None = None

    def __post_init__(self) -> None:
        shape = (len(self.queries), len(self.models))
        for name in ("quality", "price", "seconds"):
            if (found := getattr(self, name).shape) != shape:
                raise DovetailError(f"{name} must be {shape[0]} queries by {shape[1]} models, got {found}.")
        if bad := int(np.sum((self.quality < 0) | (self.quality > 1))):
            raise DovetailError(f"qualities must be from 0 to 1; {bad} are not. Scale them.")
        if bad := int(np.sum((self.price < 0) | np.isinf(self.price))):
            raise DovetailError(f"prices must be 0 or more; {bad} are not.")

    def __len__(self) -> int:
        return len(self.queries)

    @classmethod
    def read(cls, path: str | Path) -> "OutcomeTable":
        """Of a CSV file, a Parquet file, or a folder of Parquet files such as `dovetail route --record` writes."""
        return cls.of(_rows(Path(path)), where=str(path))

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]], *, where: str = "the table") -> "OutcomeTable":
        """The table of rows as a file of outcomes has them."""
        outcomes: dict[str, dict[str, dict[str, Any]]] = {}
        for row in rows:
            told = {name: value for name, value in row.items() if value is not None and value != ""}
            if "model" not in told or not ("id" in told or "query" in told):
                raise DovetailError(f"every row of {where} must name its query and its model, got {dict(row)!r:.200}.")
            outcomes.setdefault(str(told.get("id", told.get("query"))), {}).setdefault(told["model"], {}).update(told)
        kept = [by_model for by_model in outcomes.values() if any("query" in one for one in by_model.values())]
        models = tuple(dict.fromkeys(model for by_model in kept for model in by_model))
        if not kept:
            raise DovetailError(f"{where} must have at least one row with a query; it has none.")
        return cls(
            queries=tuple(str(_first(by_model, "query")) for by_model in kept),
            models=models,
            **{name: _matrix(kept, models, name, where) for name in ("quality", "price", "seconds")},
            domains=_column(kept, "domain"),
            answers=_answers(kept, models),
        )

    def rows(self, chosen: NDArray[np.int64]) -> "OutcomeTable":
        """The same table with the chosen queries only."""
        numbers = chosen.tolist()
        return dataclasses.replace(
            self,
            queries=tuple(self.queries[i] for i in numbers),
            domains=None if self.domains is None else tuple(self.domains[i] for i in numbers),
            answers=None if self.answers is None else tuple(self.answers[i] for i in numbers),
            **{name: getattr(self, name)[chosen] for name in ("quality", "price", "seconds")},
        )

    def of_models(self, names: Sequence[str]) -> "OutcomeTable":
        """The same of these models only, of those that the table has."""
        kept = [number for number, model in enumerate(self.models) if model in names]
        if not kept:
            raise DovetailError(
                f"the table must have outcomes of at least one of the models {', '.join(names)}; it has those of "
                f"{', '.join(self.models)}."
            )
        return dataclasses.replace(
            self,
            models=tuple(self.models[number] for number in kept),
            answers=None if self.answers is None else tuple(tuple(row[n] for n in kept) for row in self.answers),
            **{name: getattr(self, name)[:, kept] for name in ("quality", "price", "seconds")},
        )

    def can_be_learned(self) -> bool:
        """Whether enough answers were judged, and some of each model."""
        known = ~np.isnan(self.quality)
        return int(known.any(axis=1).sum()) >= LEAST and bool(known.any(axis=0).all())

    def keep_judged(self) -> "OutcomeTable":
        """The queries of which at least one answer was judged; raises where there are too few to learn from."""
        known = np.flatnonzero(~np.isnan(self.quality).all(axis=1))
        if not self.can_be_learned():
            unjudged = [
                name
                for name, no in zip(self.models, np.atleast_1d(np.isnan(self.quality).all(axis=0)), strict=True)
                if no
            ]
            raise DovetailError(
                f"to learn a route takes at least {LEAST} queries with a quality and some for each model; found "
                f"{len(known)}" + (f", and none for {', '.join(map(repr, unjudged))}." if unjudged else ".")
            )
        return self.rows(known)


LEAST = 50
"""So many judged queries at least: five folds of ten."""


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        import pyarrow
        from pyarrow import csv, parquet
    except ImportError:
        raise DovetailError("outcomes are read with pyarrow: pip install 'dovetail[serve]'.") from None
    if not path.exists():
        raise DovetailError(f"a table of outcomes must be a CSV or Parquet file; {path} is not there.")
    try:
        if path.is_dir():  # by itself: pyarrow takes its name for the value of a column where it has a '=' in it
            parts = [parquet.ParquetFile(part).read() for part in sorted(path.glob("*.parquet"))]
            found = pyarrow.concat_tables(parts, promote_options="default") if parts else pyarrow.table({})
        elif path.read_bytes()[:4] == b"PAR1":
            found = parquet.ParquetFile(path).read()
        else:
            found = csv.read_csv(path, parse_options=csv.ParseOptions(newlines_in_values=True))
    except (pyarrow.ArrowException, OSError) as error:
        raise DovetailError(f"{path} must be CSV or Parquet; reading it as such failed: {error}") from None
    if missing := [name for name in NEEDED if name not in found.column_names]:
        raise DovetailError(f"{path} must have the columns {', '.join(NEEDED)}; {', '.join(missing)} are missing.")
    rows: list[dict[str, Any]] = found.select([name for name in KNOWN if name in found.column_names]).to_pylist()
    return rows


def _first(by_model: Mapping[str, Mapping[str, Any]], name: str) -> Any:
    return next((one[name] for one in by_model.values() if name in one), None)


def _column(kept: Sequence[Mapping[str, Mapping[str, Any]]], name: str) -> tuple[str, ...] | None:
    values = [_first(by_model, name) for by_model in kept]
    return None if all(value is None for value in values) else tuple(str(value or "") for value in values)


def _answers(
    kept: Sequence[Mapping[str, Mapping[str, Any]]], models: Sequence[str]
) -> tuple[tuple[str | None, ...], ...] | None:
    if not any("answer" in one for by_model in kept for one in by_model.values()):
        return None
    return tuple(tuple(by_model.get(model, {}).get("answer") for model in models) for by_model in kept)


def _matrix(kept: Sequence[Mapping[str, Mapping[str, Any]]], models: Sequence[str], name: str, where: str) -> Numbers:
    try:
        return np.array([[float(one.get(m, {}).get(name, np.nan)) for m in models] for one in kept]).reshape(
            len(kept), len(models)
        )
    except (TypeError, ValueError) as error:
        raise DovetailError(f"{name} in {where} must be numbers; {error}.") from None
