"""From the layers of a profile to the segments that a spilled model moves, and the bytes that computing takes.

Knows names and figures of layers; knows neither budgets nor where a segment will live.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from dovetail.planning.streaming.records import Segment, StreamingRates
from dovetail.vocabulary import LayerProfile, Profile

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
