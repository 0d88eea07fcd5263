"""What requests took and were answered with, as a folder of Parquet files that `dt.route` reads.

Files are written beside and renamed, every few seconds and at the end; so a crash takes the last seconds only. What
cannot be written, to a disk that is full, is kept and tried again.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dovetail.vocabulary import DovetailError

EVERY_SECONDS = 5.0
# So many outcomes are kept while they cannot be written; the latest.
MOST_ROWS = 100_000


class OutcomeLog:
    """Takes rows of outcomes: id, query, model, quality, price, seconds, domain, answer."""

    def __init__(self, folder: Path, *, said: Callable[[str], None] = print) -> None:
        if folder.exists() and not folder.is_dir():
            raise DovetailError(f"--record must be a folder of Parquet files, or not be there yet; {folder} is a file.")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DovetailError(f"--record must be a folder that can be made; {folder}: {error.strerror}.") from None
        self._folder, self._said, self._is_failing = folder, said, False
        self._rows: list[dict[str, Any]] = []

    def add(self, **row: Any) -> None:
        """Note an outcome, or a part of one. Of a text, what UTF-8 does not have (half of a pair) becomes '?'."""
        self._rows.append({name: _encodable(value) if isinstance(value, str) else value for name, value in row.items()})

    def write(self) -> None:
        """Write the outcomes noted since the last call to a file of their own. Where that raises, they are kept."""
        import pyarrow
        from pyarrow import parquet

        if not self._rows:
            return
        rows, self._rows = self._rows, []
        texts = ("id", "query", "model", "domain", "answer")
        schema = pyarrow.schema(
            [(name, pyarrow.string()) for name in texts]
            + [(name, pyarrow.float64()) for name in ("quality", "price", "seconds")]
        )
        path = self._folder / f"part-{time.time_ns()}.parquet"
        try:
            parquet.write_table(pyarrow.Table.from_pylist(rows, schema=schema), path.with_suffix(".part"))
            path.with_suffix(".part").rename(path)
        except BaseException:
            self._rows[:0] = rows  # in place, as others may add to them meanwhile
            del self._rows[:-MOST_ROWS]
            path.with_suffix(".part").unlink(missing_ok=True)
            raise

    async def keep_writing(self) -> None:
        """Write every few seconds until cancelled, and then what is left. Where that fails it is said, once, and tried
        again."""
        with contextlib.suppress(asyncio.CancelledError):
            while True:
                await asyncio.sleep(EVERY_SECONDS)
                await asyncio.to_thread(self._write_or_say)
        self._write_or_say()
        if self._rows:
            self._said(f"the last {len(self._rows):,} outcomes are lost: they could not be written to {self._folder}")

    def _write_or_say(self) -> None:
        try:
            self.write()
        except Exception as error:  # whatever it is, requests are answered on
            if not self._is_failing:
                self._said(
                    f"outcomes must be written to {self._folder} and cannot be: {error}. The latest {MOST_ROWS:,} are "
                    f"kept, and tried again every {EVERY_SECONDS:g} s; make room there."
                )
            self._is_failing = True
        else:
            self._is_failing = False


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
