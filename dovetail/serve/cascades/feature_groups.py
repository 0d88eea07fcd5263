"""The parts of a scikit-learn pipeline's features that can be computed apart from one another, and what each takes."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy

from dovetail.serve.cascades.costs import CallCost
from dovetail.vocabulary import DovetailError

# Rows at which it is measured what a call takes.
_FEW, _MANY = 50, 1000


@dataclasses.dataclass(frozen=True, slots=True)
class FeatureGroup:
    """A fitted part of the features: columns of the input, and what is made of them; `is_dense` where the pipeline's
    estimator knows it as a dense matrix, whatever the transformer makes."""

    name: str
    transformer: Any
    columns: Any = None
    is_dense: bool = False

    def compute(self, rows: Any) -> Any:
        """The features of this group for these rows."""
        from sklearn.utils import _safe_indexing

        selected = rows if self.columns is None else _safe_indexing(rows, self.columns, axis=1)
        found = selected if self.transformer == "passthrough" else self.transformer.transform(selected)
        return found.toarray() if self.is_dense and hasattr(found, "toarray") else found


def groups_of(features: Any) -> list[FeatureGroup]:
    """The groups of a fitted `ColumnTransformer` or `FeatureUnion`, in the order of their columns. Raises
    `DovetailError` for anything else, and for one that cannot be taken apart."""
    from sklearn.compose import ColumnTransformer
    from sklearn.pipeline import FeatureUnion

    if not isinstance(features, ColumnTransformer | FeatureUnion):
        raise DovetailError(
            f"a cascade's features must be a ColumnTransformer or a FeatureUnion of two groups or more; they are a "
            f"{type(features).__name__}. Put each group that can be computed by itself under a name of its own."
        )
    if features.transformer_weights:
        raise DovetailError("a cascade's groups of features must not be weighed: leave transformer_weights out.")
    if isinstance(features, FeatureUnion):
        parts = [FeatureGroup(name, each) for name, each in features.transformer_list if each != "drop"]
    else:
        parts = [
            FeatureGroup(name, each, columns, is_dense=not features.sparse_output_)
            for name, each, columns in features.transformers_
            if each != "drop" and not _is_empty(columns)
        ]
    if len(parts) < 2:
        raise DovetailError(
            f"a cascade must have two groups of features or more, to answer from fewer first; this pipeline has "
            f"{len(parts)}."
        )
    return parts


def _is_empty(columns: Any) -> bool:
    return hasattr(columns, "__len__") and not isinstance(columns, str) and len(columns) == 0


def side_by_side(parts: Sequence[Any]) -> Any:
    """Features of several groups as one matrix, sparse where one of them is."""
    from scipy import sparse  # type: ignore[import-untyped]

    if any(sparse.issparse(part) for part in parts):
        return sparse.hstack(parts, format="csr")
    return numpy.hstack([numpy.asarray(part).reshape(len(part), -1) for part in parts])


def count_rows(rows: Any) -> int:
    """How many rows a matrix, frame or list has."""
    return int(rows.shape[0]) if hasattr(rows, "shape") else len(rows)


def take(rows: Any, which: Any) -> Any:
    """Some rows of a matrix, frame or list."""
    from sklearn.utils import _safe_indexing

    numbers = numpy.arange(count_rows(rows))[which]
    return _safe_indexing(rows, numbers, axis=0)


def measure_rows(call: Callable[[Any], Any], rows: Any) -> CallCost:
    """What a call takes of CPU for rows like these."""
    parts = [take(rows, slice(0, count)) for count in (_FEW, _MANY)]
    return CallCost.measure(call, *((count_rows(part), part) for part in parts))
