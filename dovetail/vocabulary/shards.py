"""Pieces of a data set that lie on nodes, and the order in which a task reads them, epoch by epoch."""

import dataclasses
import hashlib
from collections import Counter

from dovetail.vocabulary.errors import ProgramError

ANY = "any"
"""The order of shards of which the program says that it does not matter."""
SEEDED = "seeded"
"""The order of shards that the task's seed decides."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DataShard:
    """A piece of a data set that gives so many batches: a `path` that need only exist on the nodes that hold it, or a
    `url` that fsspec reaches from everywhere. `node` says where it lies: a node's name, or a label of nodes as
    `name=value`; without it a path lies wherever it exists. `size_bytes` is what reading it from afar moves; with
    `copy` once for each node, which keeps what it read for as long as the run lasts, and reads it there by a path.

    >>> DataShard(name="left", path="/data/left.pt", batches=50, node="site=left").place
    '/data/left.pt'
    """

    name: str
    batches: int
    path: str = ""
    url: str = ""
    node: str = ""
    size_bytes: int = 0
    copy: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ProgramError(f"a shard must have a name, got {self.name!r}.")
        if bool(self.path) == bool(self.url):
            raise ProgramError(
                f"shard {self.name!r} must have either a path on the nodes that hold it or a url that fsspec reaches, "
                f"got path={self.path!r} and url={self.url!r}."
            )
        if isinstance(self.batches, bool) or not isinstance(self.batches, int) or self.batches < 1:
            raise ProgramError(
                f"shard {self.name!r} must say how many batches it gives, a whole number of at least 1, since not "
                f"every node can count them; got {self.batches!r}."
            )
        if self.size_bytes < 0:
            raise ProgramError(f"shard {self.name!r} must have a size of at least 0 bytes, got {self.size_bytes}.")
        if self.copy and not (self.url and self.size_bytes):
            raise ProgramError(
                f"shard {self.name!r} must have a url and say its size_bytes to be copied, got url={self.url!r} and "
                f"size_bytes={self.size_bytes}."
            )

    @property
    def place(self) -> str:
        """Where it is read from."""
        return self.path or self.url


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UrlProbe:
    """What a node found that read the beginning of a file elsewhere: its size, and what came a second.

    >>> UrlProbe(size_bytes=40_000_000, bytes_per_second=8e6).bytes_per_second
    8000000.0
    """

    size_bytes: int
    bytes_per_second: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ShardSet:
    """The shards of one task, each read once an epoch, in an order that `seed` decides or, where `order` is "any",
    whoever plans. A step takes `accumulate` batches, all of one shard.

    >>> pieces = tuple(DataShard(name=name, path=name, batches=4) for name in "abc")
    >>> shards = ShardSet(shards=pieces, seed=1, accumulate=2)
    >>> shards.steps("a"), shards.steps_per_epoch, sorted(shards.order_of(0)) == sorted(shards.order_of(1))
    (2, 6, True)
    """

    shards: tuple[DataShard, ...]
    seed: int = 0
    order: str = SEEDED
    accumulate: int = 1

    def __post_init__(self) -> None:
        if not self.shards:
            raise ProgramError("a data set of shards must have at least one; it has none.")
        double = [name for name, count in Counter(each.name for each in self.shards).items() if count > 1]
        if double:
            found = " and ".join(each.place for each in self.shards if each.name == double[0])
            raise ProgramError(
                f"shards must have names of their own, by which a task's order is kept; {double[0]!r} is the name of "
                f"{found}. Rename one of them."
            )
        if self.order not in (SEEDED, ANY):
            raise ProgramError(f"the order of shards must be {SEEDED!r} or {ANY!r}, got {self.order!r}.")
        for each in self.shards:
            if each.batches % self.accumulate:
                raise ProgramError(
                    f"a step must have all its batches of one shard; shard {each.name!r} has {each.batches}, which "
                    f"accumulate={self.accumulate} does not divide. Change one of them."
                )

    def __getitem__(self, name: str) -> DataShard:
        return next(each for each in self.shards if each.name == name)

    @property
    def names(self) -> tuple[str, ...]:
        """The shards' names as they are listed."""
        return tuple(each.name for each in self.shards)

    def steps(self, name: str) -> int:
        """How many steps a task takes on a shard in one epoch."""
        return self[name].batches // self.accumulate

    @property
    def steps_per_epoch(self) -> int:
        """How many steps an epoch has."""
        return sum(map(self.steps, self.names))

    def order_of(self, epoch: int) -> tuple[str, ...]:
        """The shards of an epoch in the order that the seed decides."""
        return tuple(sorted(self.names, key=lambda name: _key(self.seed, epoch, name)))


def _key(seed: int, epoch: int, name: str) -> bytes:
    """A number as good as drawn, and the same on every machine and in every version of Python."""
    return hashlib.blake2b(f"shards\0{seed}\0{epoch}\0{name}".encode(), digest_size=8).digest()
