"""Whether what is asked and answered is still like what was held out: shares of inputs and classes, how sure answers
are, how many escalate, and, where labels come, errors and calibration. Alarms name the combination of inputs."""

import asyncio
import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy

from dovetail.serve.server.answer_table import (
    ANSWER,
    CLASS,
    CONFIDENCE,
    ESCALATED,
    RIGHT,
    SURENESS,
    InputParts,
    answer_columns,
    has_classes,
    input_numbers,
)
from dovetail.serve.server.latest_rows import LatestRows, Rows
from dovetail.serve.server.replica import Answered
from dovetail.serve.server.schema import Schema
from dovetail.vocabulary import DovetailError
from dovetail.watch.drift.detector import DriftAlarm, DriftDetector

# Rows that are compared at once, at most; those of a reference that is made of the first requests; rows that wait to be
# looked at, beyond which others are passed over; and how often that is done.
_BLOCK_ROWS, _BLOCKS, _FIRST_ROWS, _MOST_WAITING, _LOOK_SECONDS = 500, 16, 2000, 4000, 1.0
_KEPT_ALARMS = 10
_EXPECTED = "expected"

Table = dict[str, numpy.ndarray]
Retrain = Callable[[str, Rows, str], str]
"""What is done about a drift of answers or labels: given which, the rows in which it was seen (the inputs by name,
`outputs`, and `labels` where these came) and the reason; gives what came of it, in words, or raises."""


class AnswerWatch:
    """Compares rows as they are answered with a reference: rows held out, or else the first that come. Where something
    is to be done about a drift, `retrain` is called once for answers and once for labels of each model; where it
    refuses, the next alarm asks again."""

    def __init__(self, schema: Schema, *, said: Callable[[str], None] = print, retrain: Retrain | None = None) -> None:
        self._schema, self._said, self._retrain = schema, said, retrain
        self._trained_on, self._refusal = set[str](), ""
        is_kept = retrain is not None
        self._answers = _WatchedRows("answers", self._table, tensors=self._tensors if is_kept else None)
        self._labels = _WatchedRows("labels", self._labelled, tensors=self._tensors if is_kept else None)
        self.rows = self.escalated = self.alarm_count = 0
        self.alarms: list[dict[str, str]] = []

    @property
    def escalated_share(self) -> float:
        """Of all rows so far, those that a cascade's first stage left to others."""
        return self.escalated / max(1, self.rows)

    def set_reference(
        self, arrays: Sequence[numpy.ndarray], found: Answered, labels: numpy.ndarray | None = None
    ) -> None:
        """Rows that were held out, with what is answered to them now and what is right."""
        noted = _NotedRows(arrays, found, labels)
        self._answers.set_reference(self._table(noted))
        if labels is not None and has_classes(found.scores):
            self._labels.set_reference(self._labelled(noted))

    def forget(self) -> None:
        """Another model answers: the next rows are what later ones are compared with."""
        self._answers.forget()
        self._labels.forget()
        self._trained_on.clear()

    def note(self, arrays: Sequence[numpy.ndarray], found: Answered) -> None:
        """Rows were answered. Costs nothing here: they are looked at later, or passed over where there are too many."""
        self.rows += len(found.scores)
        if found.stages is not None:
            self.escalated += int((found.stages > 0).sum())
        self._answers.add(_NotedRows(arrays, found))

    def note_labels(self, arrays: Sequence[numpy.ndarray], found: Answered, labels: numpy.ndarray) -> float:
        """What was right for rows that were answered; gives the share of answers that were."""
        self._labels.add(_NotedRows(arrays, found, labels))
        return float((found.scores.argmax(axis=1) == labels).mean())

    async def keep_looking(self) -> None:
        """Look at what was noted, again and again, beside what the loop does."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            await asyncio.to_thread(self.look)

    def look(self) -> None:
        """Compare what was noted, and tell what drifted: the same only once."""
        for comparison in (self._answers, self._labels):
            for alarm in comparison.look():
                self.alarm_count += 1
                if alarm.findings:
                    self._tell(comparison.name, alarm)
                    self._train_on(comparison, alarm)

    def _tell(self, name: str, alarm: DriftAlarm) -> None:
        first, text = alarm.findings[0], "; ".join(str(finding) for finding in alarm.findings[:3])
        what = f"{name}: {first.what} of {first.values}"
        if not any(each["what"] == what for each in self.alarms):
            self._said(f"drift of {name}, in the last {alarm.window_rows} rows: {text}")
        told = {"what": what, "says": text, "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        self.alarms = [*(each for each in self.alarms if each["what"] != what), told][-_KEPT_ALARMS:]

    def _train_on(self, comparison: "_WatchedRows", alarm: DriftAlarm) -> None:
        if self._retrain is None or comparison.name in self._trained_on:
            return
        reason = f"drift of {comparison.name}, in {alarm.window_rows} rows: {alarm.findings[0]}"
        try:
            self._said(self._retrain(comparison.name, comparison.rows_of(alarm), reason))
            self._trained_on.add(comparison.name)
        except (DovetailError, OSError) as error:  # such as no daemon; there may be one at the next alarm
            if self._refusal != str(error):
                self._said(f"drift could not be trained on: {error}")
            self._refusal = str(error)

    def _tensors(self, noted: "_NotedRows") -> Rows:
        found = {field.name: array for field, array in zip(self._schema.fields, noted.arrays, strict=True)}
        found["outputs"] = noted.found.scores
        return found if noted.labels is None else found | {"labels": noted.labels}

    def _table(self, noted: "_NotedRows") -> Table:
        return input_numbers(self._schema, noted.arrays) | answer_columns(noted.found.scores, noted.found.stages)

    def _labelled(self, noted: "_NotedRows") -> Table:
        right = (noted.found.scores.argmax(axis=1) == noted.labels).astype(int)
        return self._table(noted) | {RIGHT: right, _EXPECTED: numpy.ones_like(right)}


def load_libraries() -> None:
    """Compare some rows with themselves, so that what that imports (pandas, scipy) is there before anybody waits for an
    answer: importing holds the interpreter's lock for half a second."""
    rows = numpy.random.default_rng(0).normal(size=(_FIRST_ROWS, 2))
    watch = AnswerWatch(Schema.of(rows), said=lambda _: None)
    for _ in range(2):  # the first become the reference
        watch.note([rows], Answered(rows))
        watch.look()


class _NotedRows(NamedTuple):
    """Rows of a request, what was answered, and where it is known what was right."""

    arrays: Sequence[numpy.ndarray]
    found: Answered
    labels: numpy.ndarray | None = None

    @property
    def shapes(self) -> tuple[Any, ...]:
        """Requests with the same can be one table."""
        has_stages = self.found.stages is not None
        return (has_stages, *(array.shape[1:] for array in (*self.arrays, self.found.scores)))

    @classmethod
    def join(cls, parts: Sequence["_NotedRows"]) -> "_NotedRows":
        """As one request."""
        stages = [part.found.stages for part in parts if part.found.stages is not None]
        labels = [part.labels for part in parts if part.labels is not None]
        return cls(
            [numpy.concatenate(each) for each in zip(*(part.arrays for part in parts), strict=True)],
            Answered(
                numpy.concatenate([part.found.scores for part in parts]), numpy.concatenate(stages) if stages else None
            ),
            numpy.concatenate(labels) if labels else None,
        )


class _WatchedRows:
    """Rows that wait, and the detector that they go to once there is a reference. With `tensors` the latest are kept
    as these."""

    def __init__(
        self,
        name: str,
        table: Callable[[_NotedRows], Table],
        *,
        tensors: Callable[[_NotedRows], Rows] | None = None,
    ) -> None:
        self.name, self._table, self._tensors = name, table, tensors
        self._detector: DriftDetector | None = None
        self._names = set[str]()  # of the reference's columns
        self._waiting: list[_NotedRows] = []
        self._rows = 0

    def add(self, noted: _NotedRows) -> None:
        if self._rows < _MOST_WAITING:
            self._waiting.append(noted)
            self._rows += len(noted.found.scores)

    def look(self) -> list[DriftAlarm]:
        if not self._waiting or (self._detector is None and self._rows < _FIRST_ROWS):
            return []
        waiting, self._waiting, self._rows = self._waiting, [], 0
        tables = [(self._table(_NotedRows.join(parts)), parts) for parts in _alike(waiting)]
        # After a swap a model answers that has stages, or none: of what waits, that is the newest.
        tables = [(each, parts) for each, parts in tables if each.keys() == tables[-1][0].keys()]
        table = _joined([each for each, _ in tables])
        if self._detector is None or table.keys() != self._names:
            self.set_reference(table)
            return []
        if self._tensors is not None:
            for noted in itertools.chain.from_iterable(parts for _, parts in tables):
                self._latest.add(self._tensors(noted))
        return self._detector.update(self._columns(table))

    def rows_of(self, alarm: DriftAlarm) -> Rows:
        """The rows in which it was seen, one of the latest look."""
        assert self._detector is not None
        return self._latest.window(alarm.window_rows, before=self._detector.rows - alarm.rows)

    def forget(self) -> None:
        """Wait for another reference."""
        self._detector, self._waiting, self._rows = None, [], 0

    def set_reference(self, table: Table) -> None:
        self._names, self._latest = set(table), LatestRows(_BLOCK_ROWS * _BLOCKS + _MOST_WAITING)
        measured = {SURENESS, ANSWER, ESCALATED, CONFIDENCE, CLASS, RIGHT, _EXPECTED}
        self._parts = InputParts.of({name: values for name, values in table.items() if name not in measured})
        has_labels = RIGHT in table
        self._detector = DriftDetector(
            self._columns(table),
            attributes=[*self._parts.ends, *([CLASS] if CLASS in table else [])],
            metrics=[] if has_labels else [name for name in (SURENESS, ANSWER, ESCALATED) if name in table],
            label=RIGHT if has_labels else None,
            prediction=_EXPECTED if has_labels else None,
            probability=CONFIDENCE if has_labels else None,
            order=2,
            block_rows=_BLOCK_ROWS,
            blocks=_BLOCKS,
        )

    def _columns(self, table: Table) -> Table:
        return {**table, **self._parts.name(table)}


def _alike(noted: Sequence[_NotedRows]) -> Iterable[list[_NotedRows]]:
    """By their shapes: a table for each request would take the interpreter's lock from the loop for 0.2 ms each."""
    found: dict[tuple[Any, ...], list[_NotedRows]] = {}
    for each in noted:
        found.setdefault(each.shapes, []).append(each)
    return found.values()


def _joined(tables: Sequence[Table]) -> Table:
    return {name: numpy.concatenate([each[name] for each in tables]) for name in tables[0]}
