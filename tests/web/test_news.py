"""Pages come, hear everything in order, and are cut off at any moment without harm to others."""

import asyncio
import contextlib
import json
import zlib
from pathlib import Path

import pytest

from dovetail.store import Store
from dovetail.web import news as module
from dovetail.web.news import StoreNews
from tests.web.synthetic import fill_sweep, make_task


@pytest.fixture
def home(tmp_path: Path) -> Path:
    with Store(tmp_path / "store", write=True) as store:
        fill_sweep(store)
    return tmp_path / "store"


class Listener:
    """What one page hears, unpacked."""

    def __init__(self, news: StoreNews, mark: str) -> None:
        self.stream, self.unpack, self.text = news.watch(mark), zlib.decompressobj(wbits=31), ""

    async def until(self, word: str) -> str:
        while word not in self.text:
            async with asyncio.timeout(20):
                self.text += self.unpack.decompress(await anext(self.stream)).decode()
        return self.text


def test_what_happens_is_heard_and_a_stranger_begins_anew(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.05)

    async def scene() -> None:
        news = StoreNews(home)
        await news.begin()
        mark = json.loads(zlib.decompress(await news.snapshot(), wbits=31))["mark"]
        known, stranger = Listener(news, mark), Listener(news, "elsewhere.7")
        await known.until("event: beat")
        assert "event: anew" in await stranger.until("event: beat")
        with Store(home, write=True) as store:
            store.add(tasks=[("w", make_task("a new one"))])
        for each in (known, stranger):
            assert "event: change" in await each.until("a new one")
        await news.close()

    asyncio.run(scene())


def test_who_is_cut_off_harms_nobody(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(module, "BEAT_SECONDS", 0.05)

    async def leave_soon(news: StoreNews, after: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(after):
                await Listener(news, "").until("never")

    async def scene() -> None:
        news = StoreNews(home)
        await asyncio.gather(*(leave_soon(news, 0.01 * number) for number in range(40)))
        stays = Listener(news, "")
        with Store(home, write=True) as store:
            store.add(tasks=[("w", make_task("still told"))])
        await stays.until("event: anew")
        await stays.until("event: beat")
        assert len(news._bells) <= 41
        await stays.stream.aclose()
        await asyncio.sleep(0.2)
        await news.close()

    asyncio.run(scene())
