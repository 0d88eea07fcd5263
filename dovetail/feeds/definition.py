"""What a feed is: a source and stages, as an unchanging value that can be printed, compared and sent elsewhere.

Nothing is read here. `plain_reader` reads a definition in the process that asks, `running` with workers; both give the
same batches.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from dovetail.feeds.item_order import ItemOrder
from dovetail.feeds.keyed_draws import wants_rng
from dovetail.feeds.sources import ItemSource, SelectedSource, StreamSource, source_of
from dovetail.vocabulary import FEED_BYTES, FeedPlan, ProgramError

if TYPE_CHECKING:
    from dovetail.feeds.running import RunningFeed

DEFAULT_BUDGET_BYTES = FEED_BYTES
SOURCE = "source"
"""The name of the stage that reads an item from the source."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FeedStage:
    """One step of a feed's definition. `size` is a batch's or a group's number of items, or a shuffle's window."""

    operation: str
    name: str
    function: Callable[..., Any] | None = None
    size: int = 1
    draws: bool | None = None
    drop_last: bool = False
    memory_bytes: int = 0
    disk_bytes: int = 0

    def __str__(self) -> str:
        called = getattr(self.function, "__name__", None) or (type(self.function).__name__ if self.function else "")
        words = [called] if called else []
        if self.operation in ("shuffle", "batch", "map_batches"):
            words.append(f"size={self.size}" if words else str(self.size))
        if self.operation == "cache":
            words.append(f"memory_bytes={self.memory_bytes}, disk_bytes={self.disk_bytes}")
        return f".{self.operation}({', '.join(words)})"


@dataclasses.dataclass(frozen=True, repr=False, kw_only=True)
class Feed:
    """An input pipeline as a value: where items come from and what is done with each. `dt.feed` makes one, and each of
    its methods gives another with one stage more.

    Iterating it reads the first epoch in this process; `epoch(n)` reads any. In `Training(batches=feed)` it is read by
    as many workers as are worth it, with the same batches to the bit, epoch after epoch.

    >>> feed = Feed(source=source_of(range(5))).map(lambda x: x * x).batch(2)
    >>> [batch.tolist() for batch in feed]
    [[0, 1], [4, 9], [16]]
    >>> feed
    feed(range of 5 items).map(<lambda>).batch(2)
    """

    source: ItemSource | StreamSource
    stages: tuple[FeedStage, ...] = ()
    seed: int = 0
    skip: int = 0

    def map(self, function: Callable[..., Any], *, name: str = "", draws: bool | None = None) -> "Feed":
        """Put each item, or behind `batch` each batch, through a function.

        A function with a parameter `rng` is given a NumPy generator that is keyed by seed, epoch and item. `draws` says
        whether it draws from the global generators; where nothing is said, that is found out.

        >>> import dovetail as dt
        >>> list(dt.feed(["a", "b"]).map(str.upper))
        ['A', 'B']
        """
        return self._add_stage("map", function, name=name, draws=draws)

    def select(self, numbers: Any) -> "Feed":
        """Read only some of the source's items: those of a `dt.Selection`, each as often as its weight says, or those
        of these numbers.

        >>> import dovetail as dt
        >>> list(dt.feed(["a", "b", "c", "d"]).select([0, 3]).map(str.upper))
        ['A', 'D']
        """
        if not isinstance(self.source, ItemSource):
            raise ProgramError(
                f"select must have a source that reads items by number; a {self.source.describe()} does not."
            )
        length = len(self.source)
        chosen = list(map(int, numbers.of(range(length)) if hasattr(numbers, "of") else numbers))
        if not chosen or not 0 <= min(chosen) <= max(chosen) < length:
            raise ProgramError(
                f"select must be given numbers of the source's {length:,} items, from 0 on, and one at least; got "
                f"{f'{min(chosen)} to {max(chosen)}' if chosen else 'none'}."
            )
        return dataclasses.replace(self, source=SelectedSource(self.source, chosen))

    def map_batches(
        self, function: Callable[..., Any], *, size: int = 0, name: str = "", draws: bool | None = None
    ) -> "Feed":
        """Put lists of up to `size` items through a function that gives as many; behind `batch`, each batch.

        >>> import dovetail as dt
        >>> list(dt.feed(range(4)).map_batches(lambda numbers: [sum(numbers)] * len(numbers), size=2))
        [1, 1, 5, 5]
        """
        if self._is_batched():
            if size:
                raise ProgramError(
                    f"map_batches behind batch takes batches as they are, without size; got size={size}."
                )
            return self.map(function, name=name, draws=draws)
        return self._add_stage(
            "map_batches", function, name=name, draws=draws, size=_check_count(size or 32, "map_batches' size")
        )

    def filter(self, function: Callable[..., Any], *, name: str = "", draws: bool | None = None) -> "Feed":
        """Keep the items for which a function is true.

        >>> import dovetail as dt
        >>> list(dt.feed(range(5)).filter(lambda number: number % 2))
        [1, 3]
        """
        return self._add_stage("filter", function, name=name, draws=draws)

    def shuffle(self, window: int) -> "Feed":
        """Read the items in another order in each epoch, shuffled within windows of this many items.

        >>> import dovetail as dt
        >>> sorted(dt.feed(range(5)).shuffle(100))
        [0, 1, 2, 3, 4]
        """
        self._refuse_batched("shuffle", "Shuffle items before they are put into batches")
        return self._add_stage("shuffle", None, size=_check_count(window, "shuffle's window"))

    def batch(
        self,
        size: int,
        *,
        collate: Callable[..., Any] | None = None,
        drop_last: bool = False,
        name: str = "",
        draws: bool | None = None,
    ) -> "Feed":
        """Put items together, `size` at a time, as torch's `default_collate` or a function of yours does it.

        >>> import dovetail as dt
        >>> list(dt.feed(list("abc")).batch(2, collate="".join, drop_last=True))
        ['ab']
        """
        self._refuse_batched("batch", "Give it the whole size at once")
        size = _check_count(size, "batch's size")
        return self._add_stage("batch", collate, name=name or "batch", draws=draws, size=size, drop_last=drop_last)

    def cache(self, *, memory_bytes: int = 0, disk_bytes: int = 0) -> "Feed":
        """Keep what the stages before this gave, for later epochs: in memory, and then in a file that is gone with the
        process. What does not fit is read again. Stages before it draw the same random numbers in every epoch.

        >>> import dovetail as dt
        >>> dt.feed(["a"]).map(str.upper).cache(memory_bytes=1000)
        feed(list of 1 items).map(upper).cache(memory_bytes=1000, disk_bytes=0)
        """
        self._refuse_batched("cache", "Keep items before they are put into batches")
        if any(stage.operation == "cache" for stage in self.stages):
            raise ProgramError("a feed must have one cache at most; this is a second one.")
        if isinstance(self.source, StreamSource):
            raise ProgramError(
                "a cache must have a source that reads items by number; a stream's are read anew anyway."
            )
        if memory_bytes < 0 or disk_bytes < 0 or not memory_bytes + disk_bytes:
            raise ProgramError(
                f"a cache must have memory_bytes or disk_bytes of more than 0, got {memory_bytes} and {disk_bytes}."
            )
        return self._add_stage("cache", None, memory_bytes=memory_bytes, disk_bytes=disk_bytes)

    def open(self, plan: FeedPlan | None = None, *, budget_bytes: int = DEFAULT_BUDGET_BYTES) -> "RunningFeed":
        """Read it with workers, as the plan says: an iterator of batches that can be resized while it runs.

        >>> import dovetail as dt
        >>> with dt.feed(range(4)).batch(2).open() as running:
        ...     [batch.tolist() for batch in running]
        [[0, 1], [2, 3]]
        """
        from dovetail.feeds.running import RunningFeed

        return RunningFeed(self, plan=plan, budget_bytes=budget_bytes)

    def epoch(self, number: int) -> Iterator[Any]:
        """The batches of one epoch, read in this process.

        >>> import dovetail as dt
        >>> feed = dt.feed(range(100)).shuffle(100)
        >>> list(feed.epoch(0)) == list(feed), list(feed.epoch(1)) == list(feed)
        (True, False)
        """
        from dovetail.feeds.plain_reader import PlainReader

        reader = PlainReader(self)
        reader.load_state_dict({"epoch": number, "index": 0, "position": 0, "skipped": 0, "items": None})
        return iter(reader)

    def __iter__(self) -> Iterator[Any]:
        return self.epoch(0)

    def __len__(self) -> int:
        if isinstance(self.source, StreamSource) or self.varies():
            raise TypeError("a feed has no length where it filters or skips items, or reads a stream")
        items, batch = len(self.source), self.batch_stage()
        if batch is None:
            return items
        return items // batch.size if batch.drop_last else -(-items // batch.size)

    def __repr__(self) -> str:
        return f"feed({self.source.describe()}){''.join(map(str, self.stages))}"

    def work_stages(self) -> tuple[FeedStage, ...]:
        """The stages that workers run, in their order: reading, and all but shuffles and caches."""
        read = FeedStage(operation="read", name=SOURCE)
        return (read, *(stage for stage in self.stages if stage.operation not in ("shuffle", "cache")))

    def cache_place(self) -> int:
        """Before which of the working stages the cache stands; 0 where there is none."""
        place = 1
        for stage in self.stages:
            if stage.operation == "cache":
                return place
            place += stage.operation != "shuffle"
        return 0

    def may_cache(self) -> bool:
        """Whether a cache could be added: there is one at most, and a stream's items are read anew anyway."""
        return not self.cache_place() and isinstance(self.source, ItemSource)

    def order(self) -> ItemOrder:
        """The order in which its items are read."""
        return ItemOrder(windows=[s.size for s in self.stages if s.operation == "shuffle"], seed=self.seed)

    def batch_stage(self) -> FeedStage | None:
        """The stage that makes batches."""
        return next((stage for stage in self.stages if stage.operation == "batch"), None)

    def varies(self) -> bool:
        """Whether how many items are left is not known before they are read."""
        return self.skip > 0 or any(stage.operation == "filter" for stage in self.stages)

    def _is_batched(self) -> bool:
        return self.batch_stage() is not None

    def _refuse_batched(self, operation: str, advice: str) -> None:
        if self._is_batched():
            raise ProgramError(f"{operation} must stand before batch; this feed has batches already. {advice}.")

    def _add_stage(
        self, operation: str, function: Callable[..., Any] | None, *, name: str = "", **fields: Any
    ) -> "Feed":
        if operation in ("map", "map_batches", "filter") and not callable(function):
            raise ProgramError(f"{operation} must be given a function, got {type(function).__name__}.")
        stage = FeedStage(operation=operation, name=self._name(name, operation, function), function=function, **fields)
        return dataclasses.replace(self, stages=(*self.stages, stage))

    def _name(self, name: str, operation: str, function: Callable[..., Any] | None) -> str:
        """A name of its own for a stage: what it is called, its function's, or what it does."""
        own = getattr(function, "__name__", type(function).__name__) if function is not None else operation
        wanted = name or (operation if own == "<lambda>" else own)
        taken = {SOURCE, *(stage.name for stage in self.stages)}
        number, found = 2, wanted
        while found in taken:
            found, number = f"{wanted} {number}", number + 1
        return found


def feed(source: Any, *, seed: int = 0, skip: int = 0) -> Feed:
    """Describe an input pipeline; its methods add stages.

    `source` is a list or map-style dataset, a pattern or list of paths on any file system that fsspec knows, or any
    iterable that begins anew each time. Of paths that end in `.tar` the items are samples as WebDataset has them, of
    `.parquet` rows; of other patterns the paths themselves. `seed` is that of the order and of all random draws. Up to
    `skip` items of an epoch may raise, and are left out; one more is an error.

    >>> import dovetail as dt
    >>> images = dt.feed(range(1000)).map(lambda number: [number] * 3).shuffle(100).batch(4)
    >>> images
    feed(range of 1,000 items).map(<lambda>).shuffle(100).batch(4)
    >>> len(images), next(iter(images))[0].shape
    (250, torch.Size([4]))
    """
    if skip < 0:
        raise ProgramError(f"a feed's skip must be a count of at least 0, got {skip}.")
    return Feed(source=source_of(source), seed=seed, skip=skip)


def gives_rng(stage: FeedStage) -> bool:
    """Whether a stage's function is given a generator of its own.

    >>> gives_rng(FeedStage(operation="map", name="noise", function=lambda item, rng: item + rng.normal()))
    True
    """
    return stage.function is not None and wants_rng(stage.function)


def _check_count(number: Any, what: str) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise ProgramError(f"{what} must be a whole number of at least 1, got {number!r}.")
    return number
