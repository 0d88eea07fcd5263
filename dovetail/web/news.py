"""Between pages, which ask from an event loop, and a store, which is read on one thread: looks while somebody watches,
and sends each page what it has not heard."""

import asyncio
import concurrent.futures
import contextlib
import functools
import os
import time
import zlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeVar

from dovetail.web.follower import StoreFollower

T = TypeVar("T")

# How often the store is looked at, while pages watch; sooner where there is more to read.
LOOK_SECONDS, HURRY_SECONDS = 1.0, 0.3
# A page that hears nothing for longer takes the connection for dead.
BEAT_SECONDS = 4.0


# What runs beside training on the same cores takes what training leaves.
NICENESS = 10


def lower_priority() -> None:
    """Let this thread, and those that it starts, come after training where all cores are busy."""
    with contextlib.suppress(OSError):
        os.nice(NICENESS)


class StoreNews:
    """One store for all pages that watch it."""

    def __init__(self, home: Path) -> None:
        self.follower = StoreFollower(home)
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="store")
        # One for each page that watches. A condition for all would have to be locked by each of them as it leaves, and
        # a page that is cut off while it waits for that would leave it locked.
        self._bells: set[asyncio.Event] = set()
        self._looked_at = 0.0
        self._looking: asyncio.Task[None] | None = None
        self._beginning: asyncio.Task[None] | None = None
        self._has_begun = asyncio.Event()

    async def begin(self) -> None:
        """Read the store before the first page asks for it; from then on training goes first on busy cores."""
        self._beginning = asyncio.create_task(self._look_first())
        await asyncio.sleep(0)

    async def _look_first(self) -> None:
        await self._look()
        self._has_begun.set()
        while not self.follower.is_read:
            await self._look()
        await self.ask(lambda follower: lower_priority())

    async def ask(self, question: Callable[[StoreFollower], T]) -> T:
        """What the follower answers, asked on its own thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, question, self.follower)

    async def snapshot(self) -> bytes:
        """Everything as it stands now; of a long store that is being read for the first time, as far as it is read."""
        if self._beginning is not None and not self._beginning.done():
            await self._has_begun.wait()
        elif time.monotonic() - self._looked_at > LOOK_SECONDS:
            await self._look()
        return await self.ask(StoreFollower.snapshot)

    async def watch(self, mark: str) -> AsyncIterator[bytes]:
        """What happens after `mark`, as server-sent events, compressed; a word from time to time where nothing does."""
        packer = zlib.compressobj(3, wbits=31)
        bell = asyncio.Event()
        self._bells.add(bell)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look_on())
        try:
            async for text in self._news(mark, bell):
                yield packer.compress(text.encode()) + packer.flush(zlib.Z_SYNC_FLUSH)
        finally:
            self._bells.discard(bell)

    async def close(self) -> None:
        """Stop watching the store for changes."""
        for task in (self._looking, self._beginning):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        await self.ask(StoreFollower.close)
        self._thread.shutdown(wait=True)

    async def _news(self, mark: str, bell: asyncio.Event) -> AsyncIterator[str]:
        yield "retry: 2000\n\n"
        while True:
            bell.clear()
            # Asked on the store's thread, where changes are made: nobody finds them half made.
            changes, generation, number = await self.ask(functools.partial(StoreFollower.news, mark=mark))
            if changes is None:
                yield f"event: anew\ndata: {generation}.{number}\n\n"
                mark = f"{generation}.{number}"
                continue
            for change in changes:
                mark = f"{generation}.{change.number}"
                yield f"id: {mark}\nevent: change\ndata: {change.text}\n\n"
            if not changes:
                yield f"event: beat\ndata: {time.time():.3f}\n\n"
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BEAT_SECONDS):
                    await bell.wait()

    async def _look_on(self) -> None:
        while self._bells:
            await self._look()
            await asyncio.sleep(HURRY_SECONDS if self.follower.is_behind else LOOK_SECONDS)

    async def _look(self) -> None:
        before = (self.follower.generation, self.follower.number)
        await self.ask(StoreFollower.look)
        self._looked_at = time.monotonic()
        if (self.follower.generation, self.follower.number) != before:
            for bell in self._bells:
                bell.set()
