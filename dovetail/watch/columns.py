"""One column: as an array, as numbers, as moments, as places among its distinct values. `tables` reads whole tables."""

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np

from dovetail.native.text_codes import code_text
from dovetail.vocabulary import DovetailError


def to_array(column: Any) -> Any:
    """NumPy's, or pandas' own where it has one: categories and text are counted there without being unpacked.

    >>> to_array(["eu", 1]).tolist()
    ['eu', 1]
    """
    if type(column).__module__.startswith("pyarrow"):
        column = column.to_pandas()
    if type(column).__module__.startswith("pandas") and not isinstance(column.dtype, np.dtype):
        return getattr(column, "array", column)
    if hasattr(column, "to_numpy"):
        return column.to_numpy()
    # Told its type, NumPy would make text of numbers that stand beside text.
    return column if isinstance(column, np.ndarray) else np.array(column, dtype=_dtype(column))


def _dtype(values: Iterable[Any]) -> Any:
    return None if all(isinstance(each, int | float | np.number) for each in values) else object


def numbers(column: Any, name: str) -> np.ndarray:
    """A column as numbers, NaN where there is none.

    >>> numbers(np.array([1, None], dtype=object), "latency").tolist()
    [1.0, nan]
    """
    try:
        if hasattr(column, "to_numpy"):
            return np.asarray(column.to_numpy(dtype=float, na_value=np.nan))
        if column.dtype.kind in "biuf":
            return np.asarray(column, dtype=float)
        if column.dtype.kind == "O" and not any(isinstance(each, str) for each in column):
            return np.asarray(column.astype(float))
    except (TypeError, ValueError):
        pass
    strange = next((each for each in column.tolist() if isinstance(each, str)), column[0])
    raise DovetailError(
        f"{name!r} must be numbers; found {strange!r}. Name it as an attribute, or turn it into numbers."
    )


def seconds(column: Any, name: str) -> np.ndarray:
    """A column of moments as seconds since 1970, or of numbers as they are.

    >>> seconds(np.array(["1970-01-01T00:01"], dtype="datetime64[ms]"), "at").tolist()
    [60.0]
    """
    if column.dtype.kind == "M" and not isinstance(column.dtype, np.dtype):  # as pandas has them, with a zone
        import pandas

        column = pandas.DatetimeIndex(pandas.to_datetime(column, utc=True)).tz_convert(None)
    plain = np.asarray(column)
    if plain.dtype.kind == "M":
        found = plain.astype("datetime64[us]").astype(np.int64) / 1e6
        found[np.isnat(plain)] = np.nan
    else:
        found = numbers(column, name)
    if not np.isfinite(found).all():
        raise DovetailError(f"every event must have a time; {name!r} has none in {np.sum(~np.isfinite(found))} rows.")
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class FactorizedColumn:
    """Distinct values, the place of each row's among them, -1 for null, and whether they are text or numbers."""

    places: np.ndarray
    distinct: list[Any]
    kind: str


def factorize(column: Any, name: str, *, kind: str = "") -> FactorizedColumn:
    """A column's distinct values and which each row has; dates and the like are text. Text beside numbers is refused,
    and so is what is not of a `kind` seen before: 1 and '1' are two values, and who mixes them means one.

    >>> factorize(np.array(["eu", "us", "eu"], dtype=object), "region")
    FactorizedColumn(places=array([0, 1, 0]), distinct=['eu', 'us'], kind='text')
    """
    places, distinct = code_text(column) or _factorize_any(column, name)
    if distinct and not isinstance(distinct[0], str | int | float):
        distinct = [each.item() if isinstance(each, np.number | np.bool) else str(each) for each in distinct]
    kinds = sorted({_kind(each) for each in set(map(type, distinct))} | ({kind} if kind else set()))
    if len(kinds) > 1:
        other = next(each for each in distinct if _kind(type(each)) != kind)
        raise DovetailError(
            f"values of an attribute must be of one type; {name!r} has {' and '.join(kinds)}, such as {other!r}. Turn "
            f"all of them into text, or into numbers."
        )
    return FactorizedColumn(places, distinct, kinds[0] if kinds else "")


def _factorize_any(column: Any, name: str) -> tuple[np.ndarray, list[Any]]:
    import pandas

    try:
        places, found = pandas.factorize(column)
    except TypeError as error:
        raise DovetailError(
            f"values of an attribute must be text, numbers or dates; {name!r} has others ({error})."
        ) from error
    return places, found.tolist()


def kinds(values: np.ndarray) -> set[str]:
    """Whether there are numbers, text (and dates and the like), or both; what is missing is neither.

    >>> sorted(kinds(np.array([1, "1", None], dtype=object)))
    ['numbers', 'text']
    """
    import pandas

    types = set(map(type, values[~pandas.isna(values)])) if values.dtype.kind == "O" else {values.dtype.type}
    return {_kind(each) for each in types}


def _kind(type_: type) -> str:
    return "numbers" if issubclass(type_, int | float | np.number | np.bool) else "text"
