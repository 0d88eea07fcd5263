"""From a graph, a fabric and terms to stages on devices: asks the search for every arrangement and explains the best.

Knows what users may ask for and what to say when it cannot be had.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dovetail.planning.pipeline.partition.fabric import Fabric, memory_bytes
from dovetail.planning.pipeline.partition.graph import Graph, find_cuts, members, most_cuts_for
from dovetail.planning.pipeline.partition.terms import Partition, Stage, Terms, in_flight
from dovetail.vocabulary import InvalidRecord, NoFeasiblePlan
from dovetail.vocabulary.units import show_bytes, show_seconds

if TYPE_CHECKING:
    from dovetail.planning.pipeline.partition.search import LayerSpan, StageSearch

# Arrangements whose times differ by less are equal, and the first is taken.
_BETTER = 1 - 1e-9
# By so much a pipeline must be faster than replication: what is promised leaves out that it fills and drains, and holds
# more versions of its weights; and where sums of gradients pass while devices compute, replication loses nothing.
WORTH = 1.05


def partition(
    graph: Graph | Mapping[str, Graph],
    fabric: Fabric,
    *,
    terms: Terms | None = None,
    depth: int | None = None,
    width: int | None = None,
) -> Partition:
    """Stages, replicas and places with the least time of the slowest stage; one stage on all devices where nothing is
    clearly faster than that.

    `graph` is one for all devices, or one for each kind: the same layers with their seconds there. `depth` asks for so
    many stages, `width` for so many devices for each stage; left out, they are chosen.

    >>> from dovetail.vocabulary import LayerProfile
    >>> layers = tuple(LayerProfile(name=n, operation="", forward_seconds=s, backward_seconds=2 * s, parameter_bytes=p)
    ...                for n, s, p in (("a", 0.02, 0), ("b", 0.01, 0), ("c", 0.01, 10**9)))
    >>> graph = Graph(layers=layers, edges=(("a", "b"), ("b", "c")))
    >>> found = partition(graph, Fabric.uniform(sizes=(4,), bytes_per_second=(10e9,)))
    >>> [(stage.layers, stage.replicas) for stage in found.stages], round(found.seconds, 3)
    ([(('a', 'b'), 3), (('c',), 1)], 0.03)
    """
    terms = terms or Terms()
    graphs = _by_kind(graph, fabric)
    found = find_cuts(next(iter(graphs.values())), most=most_cuts_for(len(fabric.places)))
    _check_asked(terms, len(found.sets) - 1, len(fabric.places), depth, width)
    searches = _searches(graphs, found.sets, fabric, terms)
    best = _best(searches, terms, depth, width)
    if best is None:
        raise NoFeasiblePlan(_why_nothing_fits(searches, graphs, depth, width))
    search, spans, seconds = best
    return _described(search, spans, seconds, searches[0], next(iter(graphs.values())), complete=found.complete)


def appraise(
    graph: Graph | Mapping[str, Graph],
    fabric: Fabric,
    *,
    layers: Sequence[Sequence[str]],
    widths: Sequence[int],
    copies: int = 1,
    terms: Terms | None = None,
) -> Partition:
    """What a division made elsewhere takes: the `layers` of each stage, and its devices in each copy, in row order.

    >>> from dovetail.vocabulary import LayerProfile
    >>> one, two = (LayerProfile(name=n, operation="", forward_seconds=1, backward_seconds=2) for n in "ab")
    >>> fabric = Fabric.uniform(sizes=(3,), bytes_per_second=(1e9,))
    >>> appraise(Graph(layers=(one, two), edges=(("a", "b"),)), fabric, layers=["a", "b"], widths=[2, 1]).seconds
    3.0
    """
    from dovetail.planning.pipeline.partition.search import LayerSpan, StageSearch, Tables

    terms, graphs = terms or Terms(), _by_kind(graph, fabric)
    first = next(iter(graphs.values()))
    sets = _sets(first, layers)
    size = len(fabric.places) // copies
    if len(widths) != len(layers) or sum(widths) > size:
        raise InvalidRecord(f"widths must be one for each of {len(layers)} stages, {size} together, got {widths}.")
    search = StageSearch(Tables(graphs, sets, recompute=terms.recompute), fabric, terms, copies=copies)
    # The last devices of the row are used, as the search does.
    starts = [size - sum(widths[n:]) for n in range(len(widths))]
    spans = [LayerSpan(start=n, end=n + 1, first=start, width=widths[n]) for n, start in enumerate(starts)]
    seconds = search.promise(spans)
    whole = search if copies == 1 else StageSearch(search.tables, fabric, terms)
    return _described(search, spans, seconds, whole, first, complete=True)


def _sets(graph: Graph, layers: Sequence[Sequence[str]]) -> list[int]:
    """The cuts between stages, none and all included."""
    numbers = {layer.name: n for n, layer in enumerate(graph.layers)}
    given = [name for stage in layers for name in stage]
    if sorted(given) != sorted(numbers) or not all(layers):
        raise InvalidRecord(f"stages must hold each of the {len(numbers)} layers once and none be empty.")
    sets = [0]
    for stage in layers:
        sets.append(sets[-1] | sum(1 << numbers[name] for name in stage))
        if late := [graph.layers[n].name for n in members(sets[-1]) if graph.before[n] & ~sets[-1]]:
            raise InvalidRecord(f"a layer must not come in an earlier stage than what it reads; {late[:3]} do.")
    return sets


def _by_kind(graph: Graph | Mapping[str, Graph], fabric: Fabric) -> dict[str, Graph]:
    kinds = list(dict.fromkeys(place.kind for place in fabric.places))
    if isinstance(graph, Graph):
        return dict.fromkeys(kinds, graph)
    if missing := [kind for kind in kinds if kind not in graph]:
        raise InvalidRecord(f"there must be a graph for each kind of the fabric, {kinds}; {missing} have none.")
    first = graph[kinds[0]]
    for kind in kinds:
        if graph[kind].edges != first.edges or [_size(x) for x in graph[kind].layers] != [
            _size(x) for x in first.layers
        ]:
            raise InvalidRecord(f"graphs of all kinds must have the same layers and edges; {kind!r} has others.")
    return {kind: graph[kind] for kind in kinds}


def _size(layer: object) -> tuple[object, ...]:
    return tuple(getattr(layer, name) for name in ("name", "activation_bytes", "parameter_bytes"))


def _check_asked(terms: Terms, layers: int, devices: int, depth: int | None, width: int | None) -> None:
    if depth is not None and not 1 <= depth <= layers:
        raise InvalidRecord(
            f"a pipeline must have at least 1 stage and at most as many as layers that can stand alone, {layers}; "
            f"got {depth}."
        )
    if (width or 1) < 1 or (depth or 1) * (width or 1) > devices:
        raise InvalidRecord(
            f"depth × width must be at most the number of devices, {devices}, got {depth or 1} × {width or 1}."
        )
    if terms.weights == "double_buffered" and depth is not None and (terms.microbatches or 0) < depth:
        raise InvalidRecord(_too_few_microbatches(terms, depth))


def _too_few_microbatches(terms: Terms, depth: int) -> str:
    return (
        f"2BW must have at least as many microbatches in a step as stages, or its second buffer is overwritten while "
        f"it is read; got {terms.microbatches} microbatches for {depth} stages. "
        f"Use smaller microbatches or fewer stages."
    )


def _searches(graphs: dict[str, Graph], sets: Sequence[int], fabric: Fabric, terms: Terms) -> "list[StageSearch]":
    # numpy takes a tenth of a second to load, which `dovetail --help` should not.
    from dovetail.planning.pipeline.partition.search import StageSearch, Tables, arrangements

    tables = Tables(graphs, sets, recompute=terms.recompute)
    found = arrangements(fabric)
    return [StageSearch(tables, row, terms, copies=copies) for row, copies in found]


def _best(
    searches: "list[StageSearch]", terms: Terms, depth: int | None, width: int | None
) -> "tuple[StageSearch, list[LayerSpan], float] | None":
    best: tuple[StageSearch, list[LayerSpan], float] | None = None
    for search in searches:
        below = best[2] * _BETTER if best else float("inf")
        _, spans = _solved(search, terms, depth, width, below)
        if spans:
            seconds, spans = search.improved(spans, depth=depth, width=width // search.copies if width else None)
            if best is None or seconds < best[2] * _BETTER:
                best = search, spans, seconds
    return _replicated(searches[0], best) if depth in (None, 1) and width in (None, searches[0].size) else best


def _replicated(
    search: "StageSearch", best: "tuple[StageSearch, list[LayerSpan], float] | None"
) -> "tuple[StageSearch, list[LayerSpan], float] | None":
    """Replication where it fits and the best pipeline is hardly faster."""
    whole = [_whole(search)]
    if not search.fits(whole):
        return best
    seconds = search.promise(whole)
    return (search, whole, seconds) if best is None or seconds <= best[2] * WORTH else best


def _solved(
    search: "StageSearch", terms: Terms, depth: int | None, width: int | None, below: float
) -> "tuple[float, list[LayerSpan]]":
    own = width // search.copies if width else None
    if (width and width % search.copies) or (depth or 1) * (own or 1) > search.size:
        return float("inf"), []
    seconds, spans = search.best(depth=depth, width=own, below=below)
    most = (terms.microbatches or 0) // search.copies
    if terms.weights != "double_buffered" or len(spans) <= most:
        return seconds, spans
    # More stages than microbatches: the best of those with fewer.
    each = [search.best(depth=fewer, width=own, below=below) for fewer in range(1, most + 1)]
    return min(each, key=lambda one: one[0], default=(float("inf"), []))


def _described(
    search: "StageSearch",
    spans: "list[LayerSpan]",
    seconds: float,
    whole: "StageSearch",
    graph: Graph,
    *,
    complete: bool,
) -> Partition:
    stages = tuple(_stage(search, span, graph) for span in spans)
    replication = _replication_seconds(whole)
    bubble = _bubble_share(search, spans, seconds)
    return Partition(
        stages=stages,
        copies=search.copies,
        seconds=seconds,
        bubble_share=bubble,
        replication_seconds=replication,
        complete=complete,
        explanation=(
            _wall(search, spans, stages, seconds),
            *_explanation(stages, seconds, replication, whole, complete),
        ),
    )


def _stage(search: "StageSearch", span: "LayerSpan", graph: Graph) -> Stage:
    places, sets = search.fabric.places, search.tables.sets
    numbers = range(span.first, span.first + span.width)
    return Stage(
        layers=graph.names(sets[span.end] & ~sets[span.start]),
        devices=tuple(places[copy * search.size + n].name for copy in range(search.copies) for n in numbers),
        seconds=search.seconds(span),
        compute_seconds=search.compute_seconds(span),
        device_bytes=round(search.bytes(span)),
        in_flight=in_flight(search.terms, devices=search.size - span.first, width=span.width),
        crossing_bytes=round(float(search.tables.crossing[span.end])),
    )


def _whole(search: "StageSearch") -> "LayerSpan":
    from dovetail.planning.pipeline.partition.search import LayerSpan

    return LayerSpan(start=0, end=len(search.tables.sets) - 1, first=0, width=search.size)


def _replication_seconds(whole: "StageSearch") -> float:
    span = _whole(whole)
    room = memory_bytes(whole.fabric, range(whole.size))
    return whole.promise([span]) if not room or whole.bytes(span) <= room else float("inf")


def _bubble_share(search: "StageSearch", spans: "list[LayerSpan]", seconds: float) -> float:
    terms, depth = search.terms, len(spans)
    devices = sum(span.width for span in spans) * search.copies
    idle = 1 - sum(search.compute_seconds(span) for span in spans) / (devices * seconds) if seconds else 0.0
    if terms.weights != "flush" or terms.microbatches is None:
        return max(idle, 0.0)
    return 1 - max(1 - idle, 0.0) * terms.microbatches / (terms.microbatches + depth - 1)


def _wall(search: "StageSearch", spans: "list[LayerSpan]", stages: tuple[Stage, ...], seconds: float) -> str:
    """What keeps microbatches from passing sooner."""
    slowest = max(range(len(stages)), key=lambda n: stages[n].seconds)
    port_seconds, port = search.busiest_port(spans)
    wall = f"the slowest is stage {slowest}"
    if port_seconds > stages[slowest].seconds / _BETTER:
        wall = f"what all stages send and receive at the port of {port} takes longest"
    widths = "-".join(str(stage.replicas) for stage in stages)
    return f"{widths} devices pass a microbatch in {show_seconds(seconds)}; {wall}."


def _explanation(
    stages: tuple[Stage, ...], seconds: float, replication: float, whole: "StageSearch", complete: bool
) -> "list[str]":
    span, devices = _whole(whole), len(whole.fabric.places)
    alone, longer = _sync_seconds(whole, span), replication / seconds if seconds else float("inf")
    if replication == float("inf"):
        short = whole.bytes(span) - memory_bytes(whole.fabric, range(whole.size))
        why = f"Replication does not fit: each device would be {show_bytes(short)} short."
    elif len(stages) == 1:
        why = f"Replication is best: no pipeline is more than {WORTH - 1:.0%} faster than its {show_seconds(seconds)}."
    else:
        why = (
            f"Replication on {devices} takes {show_seconds(replication)}, {longer:.2f} times as long: "
            f"{show_seconds(alone)} of it go into summing gradients of {show_bytes(_parameters(whole))}."
        )
    partly = () if complete else ("The graph has too many cuts to try all; a family of good ones was tried.",)
    return [why, *partly]


def _sync_seconds(search: "StageSearch", span: "LayerSpan") -> float:
    """What a stage's summing of gradients takes of each microbatch."""
    pays = search.traffic(span.first, span.width)
    parameters = search.tables.parameters
    rounds = pays.replicas if search.terms.microbatches is None else max(search.terms.microbatches, pays.replicas)
    return float(parameters[span.end] - parameters[span.start]) * pays.sync_per_byte / rounds


def _parameters(search: "StageSearch") -> float:
    return float(search.tables.parameters[-1])


def _why_nothing_fits(
    searches: "list[StageSearch]", graphs: dict[str, Graph], depth: int | None, width: int | None
) -> str:
    """The stage that comes nearest to fitting in the best division there is, and by how much it does not."""
    graph = next(iter(graphs.values()))
    able = [each for each in searches if each.copies == 1]
    nearest = [(search.least_excess(depth=depth, width=width), search) for search in able]
    (excess, spans), search = min(nearest, key=lambda one: one[0][0])
    if not spans:
        return f"no division into {depth} stages of {width or 'any number of'} devices exists on {len(searches)} rows."
    span = max(spans, key=lambda each: search.bytes(each) - (_room(search, each) or float("inf")))
    stage = _stage(search, span, graph)
    return (
        f"every stage must fit its devices; in the division that comes nearest, stage {spans.index(span)} "
        f"({stage.layers[0]} … {stage.layers[-1]}, {len(stage.layers)} layers, {stage.in_flight} microbatches in "
        f"flight) needs {show_bytes(stage.device_bytes)} on {stage.devices[0]}, which has "
        f"{show_bytes(_room(search, span))}: {round(excess)} bytes too few. Use recomputation, smaller microbatches, "
        f"fewer weight versions, or more devices."
    )


def _room(search: "StageSearch", span: "LayerSpan") -> int:
    return memory_bytes(search.fabric, range(span.first, span.first + span.width))
