"""`dt.DriftDetector`: drift in a stream, as soon as it can be told from chance at a stated rate of false alarms.

Rows are gathered in blocks. After each block the latest 1, 2, 4, ... blocks are compared with the reference, for every
combination and score, at the level `false_alarms` divided by everything that is compared; so a block without drift
raises an alarm with at most that chance, and a small drift is seen in many blocks, a large one in the first.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.vocabulary import DovetailError
from dovetail.watch.drift.combination_index import CombinationIndex, tally
from dovetail.watch.drift.compare import check_rows, choose_columns
from dovetail.watch.drift.findings import DriftFinding, ScoredRows, find_drift, furthest
from dovetail.watch.drift.row_scores import RowScorer, ScoredColumns
from dovetail.watch.drift.shift_tests import LEAST_ROWS
from dovetail.watch.streams.saved_state import read_state, write_state
from dovetail.watch.tables import TableReader

_SAVED = "a drift detector"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DriftAlarm:
    """A drift that was seen once `rows` of the stream had come, in the latest `window_rows` of them."""

    rows: int
    window_rows: int
    findings: tuple[DriftFinding, ...]

    def __str__(self) -> str:
        return f"after {self.rows} rows, in the latest {self.window_rows}: {'; '.join(map(str, self.findings))}"


class DriftDetector:
    """Watches a stream for drift from a reference, and says for which combination of attributes.

    Columns are as in `dt.drift`. `block_rows` come together before they are compared, up to `blocks` of them; without
    drift, a block raises an alarm with a chance of at most `false_alarms`, over all `tests` that it makes of a block.
    After an alarm it begins anew. `save` and `DriftDetector.load` go on in another process.

    >>> import numpy as np
    >>> draws = np.random.default_rng(0)
    >>> def rows(count, slower):
    ...     region, version = draws.choice(["eu", "us"], count), draws.integers(1, 6, count)
    ...     latency = draws.normal(size=count) + slower * ((region == "eu") & (version == 3))
    ...     return {"region": region, "version": version, "latency": latency}
    >>> detector = DriftDetector(rows(20_000, 0.0), block_rows=500)
    >>> detector.update(rows(5_000, 0.0))
    []
    >>> print(detector.update(rows(5_000, 1.5))[0].findings[0].values)
    {'region': 'eu', 'version': 3}
    """

    def __init__(
        self,
        reference: Any,
        *,
        attributes: Sequence[str] | None = None,
        metrics: Sequence[str] | None = None,
        label: str | None = None,
        prediction: str | None = None,
        probability: str | None = None,
        order: int = 3,
        least_share: float = 0.005,
        block_rows: int = 1_000,
        blocks: int = 64,
        false_alarms: float = 0.001,
    ) -> None:
        if not (0 < false_alarms < 1 and block_rows >= LEAST_ROWS and blocks >= 1):
            raise DovetailError(
                f"false_alarms must be between 0 and 1, block_rows at least {LEAST_ROWS} and blocks at least 1; got "
                f"{false_alarms!r}, {block_rows!r} and {blocks!r}."
            )
        model = {name for name in (label, prediction, probability) if name}
        reader = TableReader(reference)
        metrics, attributes = choose_columns(reader, metrics, attributes, model)
        self._named = [*metrics, *attributes, *sorted(model)]
        found = reader.columns(self._named)
        least_rows = max(int(least_share * check_rows("reference", found)), LEAST_ROWS)
        columns = ScoredColumns(metrics=tuple(metrics), label=label, prediction=prediction, probability=probability)
        self._scorer = RowScorer(columns, found)
        self._index = CombinationIndex({name: found[name] for name in attributes}, order=order, least_rows=least_rows)
        self._reference = self._scored(found)
        self._before = self._tally(self._reference)
        self._block_rows, self._scales = (
            block_rows,
            [1 << each for each in range(blocks.bit_length()) if 1 << each <= blocks],
        )
        self.tests = self._count_tests()
        self._level = false_alarms / self.tests
        self._waiting: list[ScoredRows] = []
        self._blocks: list[tuple[ScoredRows, np.ndarray]] = []
        self.rows = 0
        self.alarms: list[DriftAlarm] = []

    def update(self, batch: Any) -> list[DriftAlarm]:
        """Take rows on, in the order in which they came; gives the alarms that they raise."""
        found = self._scored(TableReader(batch).columns(self._named))
        before = len(self.alarms)
        start = 0
        while start < len(found.numbers):
            held = sum(len(each.numbers) for each in self._waiting)
            end = min(start + self._block_rows - held, len(found.numbers))
            self._waiting.append(ScoredRows(found.numbers[start:end], found.scores[start:end]))
            self.rows += end - start
            if held + end - start == self._block_rows:
                self._close_block()
            start = end
        return self.alarms[before:]

    def save(self, path: str | Path) -> Path:
        """Write all of it to a file, whole or not at all; `DriftDetector.load` goes on as if nothing had been, without
        the reference."""
        state = {
            "columns": dataclasses.asdict(self._scorer.columns),
            "quantiles": self._scorer.quantiles,
            "index": self._index.state(),
            "settings": [self._named, self._block_rows, self._scales, self._level],
            "reference": self._reference.state(),
            "waiting": [each.state() for each in self._waiting],
            "blocks": [each.state() for each, _ in self._blocks],
            "rows": self.rows,
            "alarms": [dataclasses.asdict(each) for each in self.alarms],
        }
        return write_state(Path(path), state, what=_SAVED)

    @classmethod
    def load(cls, path: str | Path) -> "DriftDetector":
        """The detector that `save` wrote."""
        state = read_state(Path(path), what=_SAVED)
        found = cls.__new__(cls)
        columns = ScoredColumns(**state["columns"] | {"metrics": tuple(state["columns"]["metrics"])})
        found._scorer = RowScorer.restored(columns, state["quantiles"])
        found._index = CombinationIndex.restored(state["index"])
        found._named, found._block_rows, found._scales, found._level = state["settings"]
        found._reference = ScoredRows.restored(state["reference"])
        found._before = found._tally(found._reference)
        found.tests = found._count_tests()
        found._waiting = [ScoredRows.restored(each) for each in state["waiting"]]
        blocks = [ScoredRows.restored(each) for each in state["blocks"]]
        found._blocks = [(each, found._tally(each)) for each in blocks]
        found.rows = state["rows"]
        found.alarms = [
            DriftAlarm(**each | {"findings": tuple(DriftFinding(**one) for one in each["findings"])})
            for each in state["alarms"]
        ]
        return found

    def _tally(self, rows: ScoredRows) -> np.ndarray:
        return tally(rows.numbers, rows.scores, self._index.count)

    def _count_tests(self) -> int:
        return self._index.count * (len(self._scorer.names) + 1) * len(self._scales)

    def _scored(self, columns: dict[str, Any]) -> ScoredRows:
        return ScoredRows(self._index.numbers(columns), self._scorer.score(columns))

    def _close_block(self) -> None:
        block = _joined(self._waiting)
        self._waiting = []
        self._blocks.append((block, self._tally(block)))
        self._blocks = self._blocks[-self._scales[-1] :]
        for scale in self._scales:
            if scale > len(self._blocks):
                break
            after = sum(counts for _, counts in self._blocks[-scale:])
            if furthest(self._before, np.asarray(after), level=self._level) is not None:
                self._raise_alarm(scale)
                break

    def _raise_alarm(self, scale: int) -> None:
        latest = _joined([rows for rows, _ in self._blocks[-scale:]])
        findings = find_drift(self._index, self._scorer.names, self._reference, latest, level=self._level)
        self.alarms.append(DriftAlarm(rows=self.rows, window_rows=len(latest.numbers), findings=tuple(findings)))
        self._blocks = []


def _joined(parts: list[ScoredRows]) -> ScoredRows:
    return ScoredRows(
        np.asfortranarray(np.concatenate([each.numbers for each in parts])),
        np.concatenate([each.scores for each in parts]),
    )
