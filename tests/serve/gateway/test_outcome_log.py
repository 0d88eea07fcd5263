"""Outcomes are written whatever texts they hold, and kept while they cannot be."""

import asyncio

import pytest
from pyarrow import parquet

from dovetail.serve.gateway import outcome_log
from dovetail.serve.gateway.outcome_log import OutcomeLog


def written(folder):
    return [row for path in sorted(folder.glob("*.parquet")) for row in parquet.read_table(path).to_pylist()]


async def keep_for(log, seconds):
    writing = asyncio.create_task(log.keep_writing())
    await asyncio.sleep(seconds)
    writing.cancel()
    await writing


@pytest.fixture
def is_full(monkeypatch):
    """A disk that writes while this is False."""
    state, write_table = [True], parquet.write_table

    def write(table, path):
        if state[0]:
            path.write_bytes(b"half")
            raise OSError(28, "No space left on device")
        write_table(table, path)

    monkeypatch.setattr(parquet, "write_table", write)
    monkeypatch.setattr(outcome_log, "EVERY_SECONDS", 0.02)
    return state


def test_a_text_that_utf_8_does_not_have_is_written_all_the_same(tmp_path):
    log = OutcomeLog(tmp_path)
    log.add(id="1", model="small", answer="half \ud800 of a pair", price=1.0)
    log.add(id="2", model="small", answer="well", price=2.0)
    log.write()
    assert [(row["answer"], row["price"]) for row in written(tmp_path)] == [("half ? of a pair", 1.0), ("well", 2.0)]


def test_what_cannot_be_written_is_kept_and_said_once(tmp_path, is_full):
    said = []
    log = OutcomeLog(tmp_path, said=said.append)

    async def scenario():
        log.add(id="1", model="small")
        writing = asyncio.create_task(log.keep_writing())
        await asyncio.sleep(0.2)
        assert list(tmp_path.iterdir()) == []
        log.add(id="2", model="small")
        is_full[0] = False
        await asyncio.sleep(0.3)
        assert [row["id"] for row in written(tmp_path)] == ["1", "2"]
        log.add(id="3", model="small")
        writing.cancel()
        await writing

    asyncio.run(scenario())
    assert [row["id"] for row in written(tmp_path)] == ["1", "2", "3"]
    (only,) = said
    assert "cannot be: [Errno 28] No space left on device. The latest 100,000 are kept" in only


def test_what_is_lost_at_the_end_is_said_and_no_more_than_so_many_are_kept(tmp_path, is_full, monkeypatch):
    said = []
    monkeypatch.setattr(outcome_log, "MOST_ROWS", 3)
    log = OutcomeLog(tmp_path, said=said.append)
    for number in range(5):
        log.add(id=str(number), model="small")
    asyncio.run(keep_for(log, 0.1))
    assert said[-1] == f"the last 3 outcomes are lost: they could not be written to {tmp_path}"
    assert [row["id"] for row in log._rows] == ["2", "3", "4"]
