"""A model as planners cut it: layers with their seconds and bytes, and what flows from which to which.

A cut sends everything before it to earlier stages and everything after it to later ones, so it is a set of layers that
holds, with a layer, all it reads from. Sets are whole numbers with a bit for each layer: fast, exact, and ordered.
Knows nothing of devices.
"""

import dataclasses
import functools
from collections.abc import Iterable, Iterator

from dovetail.vocabulary import InvalidRecord, LayerProfile, Profile


@dataclasses.dataclass(frozen=True, kw_only=True)
class Graph:
    """Layers in an order in which none comes before what it reads from, and edges between their names.

    Seconds and bytes are those of one microbatch. Layers given in another order are sorted; equals keep their order.

    >>> layer = LayerProfile(name="a", operation="Linear", forward_seconds=1.0, backward_seconds=2.0)
    >>> chain = Graph(layers=(dataclasses.replace(layer, name="b"), layer), edges=(("a", "b"),))
    >>> [each.name for each in chain.layers], chain.seconds
    (['a', 'b'], 6.0)
    """

    layers: tuple[LayerProfile, ...]
    edges: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        names = [layer.name for layer in self.layers]
        if not names or len(set(names)) != len(names):
            raise InvalidRecord(f"a graph must have layers with names of their own, got {len(names)} layers.")
        if strangers := {end for edge in self.edges for end in edge} - set(names):
            raise InvalidRecord(f"edges must join layers of the graph; {sorted(strangers)[:5]} are none.")
        object.__setattr__(self, "layers", tuple(_sorted(self.layers, self.edges)))

    @staticmethod
    def of(profile: Profile) -> "Graph":
        """The graph that a profile measured.

        >>> layer = LayerProfile(name="a", operation="Linear", forward_seconds=1.0, backward_seconds=2.0)
        >>> profile = Profile(family="f", kind="cpu", count=1, step_seconds=3, peak_bytes=0, layers=(layer,))
        >>> Graph.of(profile).seconds
        3.0
        """
        if not profile.layers:
            raise InvalidRecord(
                f"the profile of family {profile.family!r} on {profile.kind!r} must list its layers; it has none. "
                f"Measure the family again with a technique that profiles layers."
            )
        return Graph(layers=profile.layers, edges=profile.edges)

    def scaled(self, ratio: float) -> "Graph":
        """The same for a microbatch `ratio` times as large: seconds and activations grow with it, parameters do not.

        >>> layer = LayerProfile(name="a", operation="Linear", forward_seconds=1.0, backward_seconds=2.0)
        >>> Graph(layers=(layer,)).scaled(0.5).seconds
        1.5
        """
        return dataclasses.replace(self, layers=tuple(_scaled(layer, ratio) for layer in self.layers))

    @property
    def seconds(self) -> float:
        """Forward and backward of one microbatch through all layers."""
        return sum(layer.forward_seconds + layer.backward_seconds for layer in self.layers)

    @property
    def everything(self) -> int:
        """The set of all layers."""
        return (1 << len(self.layers)) - 1

    @functools.cached_property
    def before(self) -> tuple[int, ...]:
        """For each layer, the set of those it reads from."""
        return tuple(self._neighbours((target, source) for source, target in self.edges))

    @functools.cached_property
    def after(self) -> tuple[int, ...]:
        """For each layer, the set of those that read from it."""
        return tuple(self._neighbours(self.edges))

    def live_bytes(self, cut: int) -> int:
        """What crosses a cut: the outputs of layers before it that layers after it read, each once.

        An output read several stages later crosses every cut on its way.
        """
        return sum(self.layers[n].activation_bytes for n in members(cut) if self.after[n] & ~cut)

    def names(self, layers: int) -> tuple[str, ...]:
        """The names of a set of layers, in order."""
        return tuple(self.layers[n].name for n in members(layers))

    def _neighbours(self, pairs: Iterable[tuple[str, str]]) -> list[int]:
        number = {layer.name: n for n, layer in enumerate(self.layers)}
        found = [0] * len(self.layers)
        for own, other in pairs:
            found[number[own]] |= 1 << number[other]
        return found


def members(layers: int) -> Iterator[int]:
    """The numbers in a set, least first.

    >>> list(members(0b1101))
    [0, 2, 3]
    """
    while layers:
        least = layers & -layers
        yield least.bit_length() - 1
        layers ^= least


def _scaled(layer: LayerProfile, ratio: float) -> LayerProfile:
    return dataclasses.replace(
        layer,
        forward_seconds=layer.forward_seconds * ratio,
        backward_seconds=layer.backward_seconds * ratio,
        activation_bytes=round(layer.activation_bytes * ratio),
    )


def _sorted(layers: tuple[LayerProfile, ...], edges: tuple[tuple[str, str], ...]) -> Iterator[LayerProfile]:
    """Each layer once all it reads from has come; among those that may come, the first given."""
    waits = _waits(layers, edges)
    left = list(layers)
    while left:
        ready = [layer for layer in left if not waits[layer.name]]
        if not ready:
            names = sorted(layer.name for layer in left)
            raise InvalidRecord(f"edges of a graph must not form a cycle; found one among {names[:5]}.")
        for layer in ready:
            yield layer
        done = {layer.name for layer in ready}
        left = [layer for layer in left if layer.name not in done]
        for layer in left:
            waits[layer.name] -= done


def _waits(layers: tuple[LayerProfile, ...], edges: tuple[tuple[str, str], ...]) -> dict[str, set[str]]:
    waits: dict[str, set[str]] = {layer.name: set() for layer in layers}
    for source, target in edges:
        waits[target].add(source)
    return waits
