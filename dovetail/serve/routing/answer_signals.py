"""What an answer says about its own quality, and about how others would do: the second half of cascade-routing.

An answer that was paid for is evidence: its words, its shape, whether several samples of it agree, and what a verifier
of the user's says. Learned from the answers in the table, like everything else here.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy import sparse  # type: ignore[import-untyped]

from dovetail.serve.routing.estimators import Predict, TextRidge
from dovetail.serve.routing.outcome_table import Numbers
from dovetail.serve.routing.text_features import TextFeatures
from dovetail.vocabulary import DovetailError

Verifier = Callable[[str, str], float]
"""Of a query and an answer a finite number, the larger the better it looks."""
# What separates several samples of one answer in a table and on the way here.
SAMPLES = "\x1e"
# The weight of what verifiers and samples say, beside a text's words, whose squares sum to one.
_SIGNAL = 0.5
_FIGURE = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def final_answer(text: str) -> str:
    """What an answer comes to: its last figure, or else its last line.

    >>> final_answer("3 apples and 4 make 1,007.00"), final_answer("Because of that:\\nParis.")
    ('1007', 'paris')
    """
    if figures := _FIGURE.findall(text):
        figure: str = figures[-1].replace(",", "")
        return figure.rstrip("0").rstrip(".") if "." in figure else figure
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip().strip(".!").lower() if lines else ""


def consistency(samples: Sequence[str]) -> float:
    """The share of the samples that come to what most of them do (self-consistency).

    >>> consistency(["It is 4", "so 4.", "5"])
    0.6666666666666666
    """
    return Counter(map(final_answer, samples)).most_common(1)[0][1] / len(samples)


def majority(samples: Sequence[str]) -> str:
    """The first of the samples that comes to what most of them do.

    >>> majority(["5", "It is 4", "so 4."])
    'It is 4'
    """
    most = Counter(map(final_answer, samples)).most_common(1)[0][0]
    return next(sample for sample in samples if final_answer(sample) == most)


class AnswerRidge:
    """A ridge regression on query and answer together."""

    def __init__(self, verifiers: Sequence[Verifier] = ()) -> None:
        self._verifiers = verifiers
        self._query, self._answer, self._ridge = TextFeatures(), TextFeatures(), TextRidge()

    def prepare(self, queries: Sequence[str], domains: Sequence[str] | None, answers: Sequence[str]) -> None:
        """Learn the vocabulary of the queries and of the answers."""
        self._query.fit(queries, domains)
        self._answer.fit([_majority_answer(answer) for answer in answers])

    def represent(self, queries: Sequence[str], domains: Sequence[str] | None, answers: Sequence[str]) -> Any:
        """A row for each query and its answer."""
        said = np.array([self._signals(query, answer) for query, answer in zip(queries, answers, strict=True)])
        parts = [
            self._query.transform(queries, domains),
            self._answer.transform([_majority_answer(each) for each in answers]),
        ]
        return sparse.hstack([*parts, sparse.csr_matrix(said * _SIGNAL)]).tocsr()

    def fit(self, rows: Any, quality: Numbers) -> Predict:
        """What predicts the quality of every model once this answer is known."""
        return self._ridge.fit(rows, quality)

    def _signals(self, query: str, answer: str) -> list[float]:
        samples = answer.split(SAMPLES)
        found = [consistency(samples), *(float(verify(query, majority(samples))) for verify in self._verifiers)]
        if not np.isfinite(found).all():
            raise DovetailError(f"a verifier must give a finite number for an answer, got {found[1:]}.")
        return found


def _majority_answer(answer: str) -> str:
    return majority(answer.split(SAMPLES))
