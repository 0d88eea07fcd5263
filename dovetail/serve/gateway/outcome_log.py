"""What requests took and were answered with, as a folder of Parquet files that `dt.route` reads.

Files are written beside and renamed, every few seconds and at the end; so a crash takes the last seconds only.
"""

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Any

from dovetail.vocabulary import DovetailError

EVERY_SECONDS = 5.0


class OutcomeLog:
    """Takes rows of outcomes: id, query, model, quality, price, seconds, domain, answer."""

    def __init__(self, folder: Path) -> None:
        if folder.exists() and not folder.is_dir():
            raise DovetailError(f"--record must be a folder of Parquet files, or not be there yet; {folder} is a file.")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DovetailError(f"--record must be a folder that can be made; {folder}: {error.strerror}.") from None
        self._folder = folder
        self._rows: list[dict[str, Any]] = []

    def add(self, **row: Any) -> None:
        """Note an outcome, or a part of one."""
        self._rows.append(row)

    def write(self) -> None:
        """Write the outcomes noted since the last call to a file of their own."""
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
        parquet.write_table(pyarrow.Table.from_pylist(rows, schema=schema), path.with_suffix(".part"))
        path.with_suffix(".part").rename(path)

    async def keep_writing(self) -> None:
        """Write every few seconds until cancelled, and then what is left."""
        with contextlib.suppress(asyncio.CancelledError):
            while True:
                await asyncio.sleep(EVERY_SECONDS)
                await asyncio.to_thread(self.write)
        self.write()
