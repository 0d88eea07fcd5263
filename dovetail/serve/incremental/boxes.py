"""How far a change reaches, along one axis of a picture: intervals, for many pictures at once. Knows no tensors.

Rows and columns are independent of one another in everything that is followed here, so a box is two intervals.
"""

import dataclasses

import numpy

Starts = numpy.ndarray
"""Where the intervals of all pictures begin; they have one size."""


@dataclasses.dataclass(frozen=True, slots=True)
class Window:
    """What a convolution or a pooling looks at along one axis: `size` cells, `dilation` apart, at every `stride`-th
    cell of an input with `padding` cells before it.

    >>> Window(size=3, stride=2, padding=1).reach(4, 8, length=16)
    (2, 5)
    >>> Window(size=3, stride=2, padding=1).needed_cells(2, 5)
    (4, 11)
    """

    size: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1

    @property
    def extent(self) -> int:
        """From the first cell that it looks at to the last."""
        return self.dilation * (self.size - 1) + 1

    def reach(self, start: int, stop: int, *, length: int) -> tuple[int, int]:
        """The outputs, of `length`, that look at some cell from `start` to before `stop`; one that does not, where none
        does."""
        first = -((self.extent - 1 - start - self.padding) // self.stride)
        last = (stop - 1 + self.padding) // self.stride
        first = min(max(first, 0), length - 1)
        return first, max(min(last + 1, length), first + 1)

    def needed_cells(self, start: int, stop: int) -> tuple[int, int]:
        """The cells, counted from the first of the padding, that these outputs look at."""
        return start * self.stride, (stop - 1) * self.stride + self.extent


@dataclasses.dataclass(frozen=True, slots=True)
class Reach:
    """Intervals of one size, one for each picture.

    >>> Reach(numpy.array([0, 4]), 4).hull(Reach(numpy.array([2, 3]), 4), length=8)
    Reach(starts=array([0, 2]), size=6)
    """

    starts: Starts
    size: int

    @classmethod
    def cover(cls, starts: Starts, stops: Starts, *, length: int) -> "Reach":
        """Those that cover these, all as long as the longest and none beyond `length`."""
        size = int((stops - starts).max())
        return cls(numpy.minimum(starts, length - size), size)

    def through(self, window: Window, *, length: int) -> "Reach":
        """The outputs of a layer with this window that depend on these cells."""
        distinct, places = numpy.unique(self.starts, return_inverse=True)
        reached = numpy.array([window.reach(int(at), int(at) + self.size, length=length) for at in distinct])[places]
        return Reach.cover(reached[:, 0], reached[:, 1], length=length)

    def hull(self, other: "Reach", *, length: int) -> "Reach":
        """What either covers, and what is between them."""
        starts = numpy.minimum(self.starts, other.starts)
        stops = numpy.maximum(self.starts + self.size, other.starts + other.size)
        return Reach.cover(starts, stops, length=length)

    def crop(self, most: int) -> "Reach":
        """Their middles, of at most so many cells.

        >>> Reach(numpy.array([0, 4]), 8).crop(4)
        Reach(starts=array([2, 6]), size=4)
        """
        beyond = max(0, self.size - most)
        return Reach(self.starts + beyond // 2, self.size - beyond) if beyond else self
