"""From the layers of a profile to the segments that a spilled model moves, and where these live within budgets of
bytes: which stay on the device, on the host, on disk; and how fast things move where a gang is predicted to run.

A session asks for a layout of its own segments, a prediction for one of those of a profile. Knows neither times nor
models.
"""

import dataclasses
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence

from dovetail.planning.streaming import GRADIENT_ROOM, Layout, Segment, StreamingRates
from dovetail.planning.techniques.resident import CUDA_HOST_BYTES
from dovetail.vocabulary import Cluster, Kind, LayerProfile, Node, Profile, TechniqueRefused
from dovetail.vocabulary.units import show_bytes

# Segments are at most this share of the model and of the device's budget, so that several are under way at once.
_SHARE = 8
# Below this share of the largest segment allowed, moving one is more trouble than keeping it.
_TINY = 1024


def cut(layers: Iterable[LayerProfile], *, limit_bytes: int) -> tuple[tuple[str, tuple[LayerProfile, ...]], ...]:
    """Layers in pieces, each with the path of its module: a module whose parameters take at most `limit_bytes` is one
    piece, a larger one is cut into its children, and what has none is never cut.

    >>> layers = [LayerProfile(name=name, operation="Linear", forward_seconds=0, backward_seconds=0, parameter_bytes=4)
    ...           for name in ("embedding", "blocks.0.in", "blocks.0.out", "blocks.1.in", "blocks.1.out", "head")]
    >>> [name for name, _ in cut(layers, limit_bytes=8)]
    ['embedding', 'blocks.0', 'blocks.1', 'head']
    """
    # `encoder#2` is the second call of a module, `encoder+1` a sum inside it: both are the module's.
    paths = [(tuple(filter(None, re.split("[#+]", layer.name)[0].split("."))), layer) for layer in layers]
    return tuple(_pieces(paths, 0, limit_bytes)) if paths else ()


def _pieces(
    paths: Sequence[tuple[tuple[str, ...], LayerProfile]], depth: int, limit_bytes: int
) -> Iterator[tuple[str, tuple[LayerProfile, ...]]]:
    is_small = sum(layer.parameter_bytes for _, layer in paths) <= limit_bytes
    if is_small or max(len(path) for path, _ in paths) < depth:
        yield ".".join(paths[0][0][:depth]), tuple(layer for _, layer in paths)
        return
    children: dict[tuple[str, ...], list[tuple[tuple[str, ...], LayerProfile]]] = {}
    for path, layer in paths:
        children.setdefault(path[: depth + 1], []).append((path, layer))
    for child in children.values():
        yield from _pieces(child, depth + 1, limit_bytes)


def segments(profile: Profile, *, device_bytes: int, recompute: bool, rates: StreamingRates) -> tuple[Segment, ...]:
    """The segments of a profile with layers for a device budget.

    Weights travel in bf16 where all computing is (`precision="bf16-pure"`), with fp32 ones in the state; otherwise they
    travel as they are and are their own master. Layers are timed one by one, so they are stretched to what whole steps
    took on the device, where they were measured there.

    >>> layers = tuple(LayerProfile(name=name, operation="Linear", forward_seconds=1.0, backward_seconds=2.0,
    ...                             parameter_bytes=4000) for name in "abcdefghi")
    >>> profile = Profile(family="f", kind="h200", count=1, step_seconds=30.0, peak_bytes=0, layers=layers,
    ...                   parameter_bytes=36000, optimizer_bytes=72000, precision="bf16-pure")
    >>> first = segments(profile, device_bytes=1 << 30, recompute=True, rates=StreamingRates())[0]
    >>> first.name, first.parameters, first.travel_bytes, first.state_bytes, round(first.backward_seconds, 2)
    ('a', 1000, 2000, 12000, 3.33)
    """
    total_bytes = sum(layer.parameter_bytes for layer in profile.layers)
    limit_bytes = _limit_bytes(profile, device_bytes)
    stretch, half = _stretch(profile, rates), profile.precision == "bf16-pure"

    def segment(name: str, layers: Sequence[LayerProfile]) -> Segment:
        own_bytes = sum(layer.parameter_bytes for layer in layers)
        forward_seconds = stretch * sum(layer.forward_seconds for layer in layers)
        backward_seconds = stretch * sum(layer.backward_seconds for layer in layers)
        return Segment(
            name=name,
            parameters=own_bytes // 4,
            travel_bytes=own_bytes // 2 if half else own_bytes,
            gradient_bytes=own_bytes // 2 if half else own_bytes,
            state_bytes=half * own_bytes + profile.optimizer_bytes * own_bytes // max(1, total_bytes),
            forward_seconds=forward_seconds,
            backward_seconds=backward_seconds + recompute * forward_seconds,
            fixed=own_bytes <= limit_bytes // _TINY,
        )

    return tuple(segment(name, layers) for name, layers in cut(profile.layers, limit_bytes=limit_bytes))


def _stretch(profile: Profile, rates: StreamingRates) -> float:
    layers_seconds = sum(layer.forward_seconds + layer.backward_seconds for layer in profile.layers)
    if profile.technique != "resident" or layers_seconds <= 0:
        return 1.0
    parameters = sum(layer.parameter_bytes for layer in profile.layers) // 4
    computing_seconds = profile.step_seconds - parameters / rates.device_update_parameters_per_second
    return max(1.0, computing_seconds / (layers_seconds * (profile.accumulate or 1)))


def working_bytes(profile: Profile, *, device_bytes: int, recompute: bool) -> int:
    """What a step takes on the device besides weights, state and gradients.

    Without recomputation it is what resident steps took. With it, one input of each segment waits for backward, which
    holds the activations of one segment at a time.

    >>> layers = tuple(LayerProfile(name=name, operation="Linear", forward_seconds=1.0, backward_seconds=2.0,
    ...                             parameter_bytes=4000, activation_bytes=500) for name in "abcdefghi")
    >>> profile = Profile(family="f", kind="h200", count=1, step_seconds=30.0, peak_bytes=160_000, layers=layers,
    ...                   parameter_bytes=36000, optimizer_bytes=72000, batch_bytes=100)
    >>> [working_bytes(profile, device_bytes=1 << 30, recompute=recompute) for recompute in (False, True)]
    [16000, 4600]
    """
    if not recompute and profile.technique == "resident":
        return max(0, profile.peak_bytes - 2 * profile.parameter_bytes - profile.optimizer_bytes)
    pieces = [layers for _, layers in cut(profile.layers, limit_bytes=_limit_bytes(profile, device_bytes))]
    inputs_bytes = profile.batch_bytes + sum(layers[-1].activation_bytes for layers in pieces[:-1])
    return inputs_bytes + max(sum(layer.activation_bytes for layer in layers) for layers in pieces)


def _limit_bytes(profile: Profile, device_bytes: int) -> int:
    total_bytes = sum(layer.parameter_bytes for layer in profile.layers)
    return max(1, min(device_bytes, total_bytes) // _SHARE)


# An AdamW update moves about this many bytes of memory a parameter: weights, gradient and two slots, some of it twice.
_UPDATE_BYTES = 32
# What one core is taken to update where nobody measured it, up to where the host's memory is the limit.
_UPDATES_PER_CORE = 0.1e9


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SpillRoom:
    """Where a gang is predicted to run: one device of a kind on an otherwise empty node, of whose cores it has a share.

    >>> h200 = Kind(name="h200", processor="cuda")
    >>> SpillRoom.of(Cluster.uniform(h200, devices_per_node=2, cores=16), kind=h200).cores
    8
    """

    kind: Kind
    node: Node
    rates: StreamingRates
    cores: int

    @staticmethod
    def of(cluster: Cluster, *, kind: Kind) -> "SpillRoom":
        """A device of the kind on the node with the most memory. Rates that nobody measured are low ones.

        >>> from dovetail.vocabulary import Link
        >>> h200 = Kind(name="h200", processor="cuda", memory_bytes_per_second=3.2e12)
        >>> cluster = dataclasses.replace(Cluster.uniform(h200, cores=16),
        ...                               links=(Link(source="host", target="h200", bytes_per_second=55e9),))
        >>> rates = SpillRoom.of(cluster, kind=h200).rates
        >>> rates.up_bytes_per_second, rates.down_bytes_per_second, rates.device_update_parameters_per_second
        (55000000000.0, 10000000000.0, 100000000000.0)
        """
        nodes = [cluster.node(device.node) for device in cluster.of_kind(kind.name)]
        node = max(nodes, key=lambda node: node.memory_bytes)
        cores = max(1, node.cores // sum(device.node == node.name for device in cluster.devices))
        return SpillRoom(kind=kind, node=node, rates=_rates(cluster, kind, node, cores), cores=cores)


def _rates(cluster: Cluster, kind: Kind, node: Node, cores: int) -> StreamingRates:
    unknown = StreamingRates()
    links = {(link.source, link.target): link.bytes_per_second for link in cluster.links if not link.between_nodes}
    update = node.update_parameters_per_second * cores / max(1, node.cores)
    return StreamingRates(
        up_bytes_per_second=links.get(("host", kind.name)) or unknown.up_bytes_per_second,
        down_bytes_per_second=links.get((kind.name, "host")) or unknown.down_bytes_per_second,
        update_parameters_per_second=update or min(unknown.update_parameters_per_second, _UPDATES_PER_CORE * cores),
        device_update_parameters_per_second=kind.memory_bytes_per_second / _UPDATE_BYTES
        or unknown.device_update_parameters_per_second,
    )


class DoesNotFit(TechniqueRefused):
    """No layout keeps within the budgets; the message says what is needed at least, what there is, and what to do.

    >>> DoesNotFit("needs at least 9 B on the device; the budget is 8 B.", 9, 8).needed_bytes
    9
    """

    def __init__(self, reason: str, needed_bytes: int = 0, free_bytes: int = 0) -> None:
        super().__init__(reason)
        self.needed_bytes, self.free_bytes = needed_bytes, free_bytes


def layout(
    segments: Sequence[Segment],
    *,
    device_bytes: int,
    host_bytes: int,
    working_bytes: int,
    depth: int = 2,
    disk_bytes: int = 0,
    holds_gradients: bool = False,
) -> Layout:
    """Where the segments live within these budgets. Raises `DoesNotFit` where there is no such layout.

    Kept are the fixed segments and then as many of the others as fit, the smaller first, of equal ones the first:
    forward needs those soonest after their update.
    `working_bytes` are activations and what is temporary. `holds_gradients` where gradients of
    kept segments wait for the end of a step (clipping, accumulation). What streams takes room for `depth` segments and
    two gradients on the device; state that exceeds the host goes to disk, the last segment's first: it has the most
    time between its gradient and its next forward.

    >>> segments = [Segment(name=str(number), parameters=1 << 20, travel_bytes=2 << 20, gradient_bytes=2 << 20,
    ...                     state_bytes=12 << 20) for number in range(8)]
    >>> found = layout(segments, device_bytes=64 << 20, host_bytes=8 << 30, working_bytes=20 << 20)
    >>> sorted(found.kept), found.device_bytes >> 20, found.pinned_bytes >> 20, (found.host_bytes >> 20) - 2048
    (['0', '1'], 56, 24, 96)
    """
    assert len({segment.name for segment in segments}) == len(segments), "segments must have names of their own"
    assert depth > 0, "there must be room for a segment that streams"
    kept, needed_bytes, depth = _keep(segments, device_bytes, working_bytes, depth, holds_gradients)
    streamed = [segment for segment in segments if segment.name not in kept]
    on_disk = _on_disk(streamed, host_bytes=host_bytes, disk_bytes=disk_bytes)
    moved_bytes = sum(segment.state_bytes for segment in on_disk)
    return Layout(
        kept=kept,
        on_disk=frozenset(segment.name for segment in on_disk),
        device_bytes=needed_bytes,
        host_bytes=_host_bytes(streamed) - moved_bytes,
        pinned_bytes=sum(segment.travel_bytes + segment.gradient_bytes for segment in streamed),
        disk_bytes=moved_bytes,
        depth=depth,
    )


def _keep(
    segments: Sequence[Segment], device_bytes: int, working_bytes: int, depth: int, holds_gradients: bool
) -> tuple[frozenset[str], int, int]:
    """The segments that stay, what all takes on the device, and for how many streamed ones there is room."""
    # The fixed first. Then by size, and in the order of forward where that is equal: a large segment that does not fit
    # (an embedding, as a rule) must not keep out smaller ones, and more memory must never keep less.
    order = sorted(segments, key=lambda segment: (not segment.fixed, segment.travel_bytes + segment.state_bytes))
    fixed = sum(segment.fixed for segment in segments)
    held = [each.travel_bytes + each.state_bytes + holds_gradients * each.gradient_bytes for each in order]
    kept_bytes = list(itertools.accumulate(held, initial=0))
    travel = [*itertools.accumulate((each.travel_bytes for each in reversed(order)), max, initial=0)][::-1]
    gradient = [*itertools.accumulate((each.gradient_bytes for each in reversed(order)), max, initial=0)][::-1]

    def needed(count: int) -> int:
        """With the first `count` kept. All kept needs no room, so it may need less than one fewer."""
        slots = min(depth, len(order) - count)
        return working_bytes + kept_bytes[count] + slots * travel[count] + GRADIENT_ROOM * gradient[count]

    counts = range(len(order), fixed - 1, -1)
    count = next((count for count in counts if needed(count) <= device_bytes), None)
    if count is None:
        least = min(counts, key=needed)
        parts = (working_bytes, kept_bytes[least], needed(least) - working_bytes - kept_bytes[least])
        raise _no_device(needed(least), device_bytes, *parts)
    return frozenset(segment.name for segment in order[:count]), needed(count), min(depth, len(order) - count)


def _no_device(needed: int, budget: int, working: int, kept: int, room: int) -> DoesNotFit:
    reason = (
        f"needs at least {show_bytes(needed)} on the device ({show_bytes(working)} to work in, {show_bytes(kept)} for "
        f"segments that stay, {show_bytes(room)} for those that stream); the budget is {show_bytes(budget)}. "
        f"Raise it, recompute activations, use a smaller batch with accumulate, or cut the model into smaller segments."
    )
    return DoesNotFit(reason, needed, budget)


def _on_disk(streamed: Sequence[Segment], *, host_bytes: int, disk_bytes: int) -> list[Segment]:
    """The segments whose state must leave the host, as few as will do, from the last on."""
    needed_bytes, free_bytes, moved = _host_bytes(streamed), disk_bytes, []
    for segment in reversed(streamed):
        if needed_bytes <= host_bytes or segment.state_bytes > free_bytes:
            break
        if segment.state_bytes:
            moved.append(segment)
        needed_bytes, free_bytes = needed_bytes - segment.state_bytes, free_bytes - segment.state_bytes
    if needed_bytes > host_bytes:
        reason = (
            f"needs at least {show_bytes(needed_bytes)} of host memory for the segments that stream, with "
            f"{show_bytes(disk_bytes - free_bytes)} of their state on disk; there are {show_bytes(host_bytes)}, and "
            f"{show_bytes(disk_bytes)} of disk. Raise the device's budget, allow more disk, or add host memory."
        )
        raise DoesNotFit(reason, needed_bytes, host_bytes)
    return moved


def _host_bytes(streamed: Iterable[Segment]) -> int:
    return CUDA_HOST_BYTES + sum(each.travel_bytes + each.gradient_bytes + each.state_bytes for each in streamed)
