"""One feed for several trainings that read the same: each batch is read once, and each of them gets one of its own.

Trainings that take steps together stand at the same place, and one reader serves them. Where they stand at different
places when the first of them asks, as after some were stopped earlier, there is a reader for each place. Who leaves the
others later is read plainly. Batches are kept until all have had them; whoever falls far behind has ended, and is not
waited for. Knows definitions and positions; who reads how fast is for others to know. For one thread.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from dovetail.feeds.assembly import FeedPosition
from dovetail.feeds.definition import Feed
from dovetail.feeds.kept_batches import KeptBatches
from dovetail.feeds.plain_reader import PlainReader
from dovetail.feeds.running import RunningFeed
from dovetail.feeds.sources import ItemSource

Place = tuple[int, int, int]
"""An epoch, how many of its batches were given, and the place in its order."""
_Given = tuple[Place, Any, FeedPosition]
"""What is given at a place, and where its reader stands afterwards."""
OpenReader = Callable[[int], RunningFeed]
"""Opens a running feed, given how many there will be at once."""


class SharedFeed:
    """Reads one definition for as many trainings as there are `definitions`, which are equal to it or said to be.
    `together` batches may be taken by one of them before the others take theirs.

    >>> from dovetail.feeds.definition import feed
    >>> numbers = feed(range(4)).batch(2)
    >>> with numbers.open() as running:
    ...     shared = SharedFeed([numbers, numbers], open_reader=lambda readers: running)
    ...     one, other = map(iter, shared.views)
    ...     next(one).tolist(), next(other).tolist(), running.stats().batches
    ([0, 1], [0, 1], 1)
    """

    def __init__(self, definitions: Sequence[Feed], *, open_reader: OpenReader, together: int = 1) -> None:
        self._definition, self._open_reader = definitions[0], open_reader
        # What is left of an epoch may be dropped on the way to the next step's batches.
        self._most_behind = 2 * together + 1
        self.views = [FeedView(self, definition) for definition in definitions]
        self._readers: list[_Reader] | None = None

    def take(self, view: "FeedView") -> _Given:
        """What comes next for one of the views."""
        if self._readers is None:
            self._readers = self._open_readers()
        reader = next((each for each in self._readers if each.serves(view.place)), None)
        if reader is None:
            reader = _Reader(PlainReader(self._definition), [view], most_behind=self._most_behind)
            self._readers.append(reader)
        found = reader.give(view)
        for other in self._readers:
            if other is not reader:
                other.forget(view)
        self._readers = [each for each in self._readers if each.is_wanted]
        return found

    def _open_readers(self) -> "list[_Reader]":
        """A reader for each place at which views stand."""
        standing: dict[Place, list[FeedView]] = {}
        for view in self.views:
            standing.setdefault(view.place, []).append(view)
        return [
            _Reader(self._open_reader(len(standing)), views, most_behind=self._most_behind)
            for views in standing.values()
        ]


class FeedView:
    """The batches of one of the trainings that share a feed, with a position of its own."""

    def __init__(self, shared: SharedFeed, definition: Feed) -> None:
        self.definition = definition
        self._shared, self._inner = shared, _Standing()

    def __len__(self) -> int:
        return len(self.definition)

    def __iter__(self) -> Iterator[Any]:
        if self._inner.begun:
            self._inner.at = FeedPosition(epoch=self.at.epoch + 1)
        self._inner.begun = True
        return self._read()

    def _read(self) -> Iterator[Any]:
        while True:
            _, value, self._inner.at = self._shared.take(self)
            if self.at.ended:
                return
            yield value

    @property
    def at(self) -> FeedPosition:
        """The position in the feed up to which this view has given batches."""
        return self._inner.at

    @property
    def place(self) -> Place:
        """This view's position as numbers that can be compared with those of other views."""
        return self.at.epoch, self.at.index, self.at.place

    def state_dict(self) -> dict[str, Any]:
        """Where it stands: epoch and position."""
        return self.at.state(self._length())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on there at the next `iter`."""
        self._inner = _Standing(at=FeedPosition.of_state(dict(state), self._length()))

    def _length(self) -> int | None:
        source = self.definition.source
        return len(source) if isinstance(source, ItemSource) else None


@dataclasses.dataclass(slots=True)
class _Standing:
    at: FeedPosition = dataclasses.field(default_factory=FeedPosition)
    begun: bool = False


class _Reader:
    """Reads for some views that stand at one place."""

    def __init__(self, source: RunningFeed | PlainReader, views: Sequence[FeedView], *, most_behind: int) -> None:
        self._source = source
        self._at = views[0].at.copy()
        self._source.load_state_dict(self._at.state(None))
        self._batches: Iterator[Any] | None = None
        self._kept, self._given = KeptBatches(views, most_behind=most_behind), 0

    @property
    def is_wanted(self) -> bool:
        """Whether any view still takes batches from this reader."""
        return self._kept.is_wanted

    def serves(self, place: Place) -> bool:
        """Whether what comes at a place is kept, or is what this one would read next."""
        own = self._at.epoch, self._at.index, self._at.place
        comes_next = (own == place and not self._at.ended) or place == (self._at.epoch + 1, 0, 0)
        return comes_next or self._number(place) is not None

    def _number(self, place: Place) -> int | None:
        return next((number for number, given in self._kept.items() if given[0] == place), None)

    def give(self, view: FeedView) -> _Given:
        """Give the next batch of this view, which others may have read before."""
        number = self._number(view.place)
        found: _Given = self._kept.take(view, self._draw(view.place) if number is None else number)
        return found

    def forget(self, view: FeedView) -> None:
        """Keep no more batches for a view that is read elsewhere now."""
        self._kept.forget(view)
        if not self.is_wanted and isinstance(self._source, RunningFeed):
            self._source.rest()

    def _draw(self, place: Place) -> int:
        if self._batches is None or place[0] > self._at.epoch:
            if self._batches is None and place[0] > self._at.epoch:
                self._source.load_state_dict(FeedPosition(epoch=place[0]).state(None))
            self._batches = iter(self._source)
        try:
            value = next(self._batches)
            self._at = FeedPosition.of_state(self._source.state_dict(), None)
        except StopIteration:
            stood = self._at if place[0] == self._at.epoch else FeedPosition(epoch=place[0])
            value, self._at = None, stood.copy(ended=True)
        self._kept.put(self._given, (place, value, self._at))
        self._given += 1
        return self._given - 1
