"""Which stage each event of a recorded run belongs to, and what therefore crosses between stages.

Layers are where the partition lists them. Operations between layers stay with the layer before them in the model's
code, or, inside a module entered since, with that module's first layer, as far as what they read and who reads them
allow: so whole blocks lie in one stage and stages follow the order of the code. Operations on nothing but sizes and
constants belong to no stage and run in each. What cannot be divided so is refused here, naming the operation.
"""

import dataclasses
import re
from collections.abc import Iterable, Sequence

from dovetail.train.cutting.pieces import Like
from dovetail.train.cutting.record import Record, TraceEvent, Value
from dovetail.train.randomness import draws
from dovetail.vocabulary import TechniqueRefused

_JOIN = re.compile(r"(.*)\+\d+")


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageAssignment:
    """A run divided into stages. Events that are in neither `stage` nor `free` are calls with events inside, and reads
    of a tensor's numbers, which every stage makes that has the tensor."""

    record: Record
    count: int
    stage: dict[TraceEvent, int]
    free: set[TraceEvent]
    takes: list[list[Value]]
    """For each stage, values in the order in which they were made; for the first, the model's inputs."""
    copies: list[set[Value]]
    """For each stage, what it changes in place although it was made elsewhere."""
    last_random: int
    """Stages up to this one take torch's generators as the stage before leaves them."""

    def stage_made(self, value: Value) -> int:
        """The stage that makes a value; the model's inputs come to the first."""
        return 0 if value.producer is None else self.stage.get(value.producer, 0)

    def like(self, value: Value, *, stage: int) -> Like:
        """What a value is like when a stage gives it."""
        known = [like for writer, like in value.history if writer is None or self.stage.get(writer, 0) <= stage]
        return known[-1]

    def is_ordered(self) -> bool:
        """Whether stages follow one another in the order of the model's code."""
        found = [self.stage[event] for event in self.record.events if event in self.stage]
        return found == sorted(found)

    def inside(self, call: TraceEvent) -> list[TraceEvent]:
        """The event and all inside it."""
        return self.record.events[call.number : call.end]


def divide(record: Record, stages: Sequence[Sequence[str]], outputs: Iterable[Value]) -> StageAssignment:
    """Divide a run into stages, each given by names of layers or of modules that hold layers."""
    forced = _layer_stages(record, stages)
    free = _free(record, forced)
    stage = _place(record, forced, free, len(stages))
    takes = _takes(record, stage, free, len(stages), list(outputs))
    made = StageAssignment(
        record=record,
        count=len(stages),
        stage=stage,
        free=free,
        takes=takes,
        copies=[set() for _ in stages],
        last_random=_last_random(record, stage),
    )
    _refuse_frames(made)
    _refuse_reads(made)
    _refuse_changes(made)
    _settle_writes(made)
    if made.last_random and not made.is_ordered():
        drawing = next(event for event in record.events if event.draws and stage.get(event, 0) > 0)
        raise TechniqueRefused(
            f"random numbers must be drawn in modules of their own where stages do not follow the order of the model's "
            f"code; {drawing} draws outside of one. Use nn.Dropout, or other stages."
        )
    return made


def layer_events(record: Record) -> list[TraceEvent]:
    """The calls that profiles list, in order."""
    return [event for event in record.events if event.is_layer]


def _layer_stages(record: Record, stages: Sequence[Sequence[str]]) -> dict[TraceEvent, int]:
    """The stage of each event inside a layer."""
    listed = {name: number for number, names in enumerate(stages) for name in names}
    calls = {event.name: event for event in record.events if event.module is not None}
    if len(listed) != sum(map(len, stages)):
        twice = sorted({name for names in stages for name in names if sum(name in other for other in stages) > 1})
        raise TechniqueRefused(f"a layer must be in one stage; {twice[:5]} are in several, or listed twice.")
    strangers = [name for name in listed if name not in calls and not _JOIN.fullmatch(name)]
    if strangers:
        raise TechniqueRefused(
            f"stages must list layers that the model calls; it does not call {strangers[:5]}. "
            f"It calls {[event.name for event in layer_events(record)][:20]}."
        )
    found: dict[TraceEvent, int] = {}
    for event in record.events:
        if event.module is not None and event.is_whole:
            around: TraceEvent | None = event
            while around is not None and around.name not in listed:
                around = around.parent
            if around is not None:
                inside = record.events[event.number : event.end]
                found.update((each, listed[around.name]) for each in inside if each.is_leaf)
    for number in range(len(stages)):
        if number not in found.values():
            raise TechniqueRefused(
                f"every stage must have a layer that computes; stage {number} of {len(stages)} has none. "
                f"Use fewer stages."
            )
    return found


def _free(record: Record, forced: dict[TraceEvent, int]) -> set[TraceEvent]:
    """Operations on nothing but sizes and constants."""
    bound: set[TraceEvent] = set()
    makers: dict[object, list[TraceEvent]] = {}
    for event in record.events:
        for value in event.makes:
            makers.setdefault(value.storage, []).append(event)
    leaves = [event for event in record.events if event.is_leaf]
    while True:
        before = len(bound)
        for event in leaves:
            from_bound = any(value.producer is None or value.producer in bound for value in event.reads)
            if (
                event in forced
                or event.module is not None
                or event.held
                or event.draws
                or event.changes
                or from_bound
                or not bound.isdisjoint(event.after)
            ):
                bound.add(event)
                # A constant that is then written in place is none.
                for storage in event.writes:
                    bound.update(makers.get(storage, ()))
        if len(bound) == before:
            return {event for event in leaves if event not in bound}


def _place(record: Record, forced: dict[TraceEvent, int], free: set[TraceEvent], count: int) -> dict[TraceEvent, int]:
    placed = [event for event in record.events if event.is_leaf and event not in free and not event.is_read]
    latest: dict[TraceEvent, int] = {}
    for event in reversed(placed):
        latest[event] = min(latest.get(event, count - 1), forced.get(event, count - 1))
        for source in _sources(event):
            latest[source] = min(latest.get(source, count - 1), latest[event])
    found: dict[TraceEvent, int] = {}
    recent: TraceEvent | None = None
    first = next((forced[event] for event in placed if event in forced), 0)
    frames: dict[int | None, int] = {}
    for event in placed:
        if event in forced:
            frames.setdefault(event.frame, forced[event])
    frames.pop(None, None)
    for event in placed:
        sources = [source for source in _sources(event) if source in found]
        earliest = max((found[source] for source in sources), default=0)
        if event in forced and earliest > forced[event]:
            source = max(sources, key=lambda source: found[source])
            makes = "changes in place" if source in event.after else "makes"
            raise TechniqueRefused(
                f"a stage must read only from stages before it; {event} is in stage {forced[event]}, and reads what "
                f"{source} {makes} in stage {found[source]}. Change the stages."
            )
        if event in forced:
            found[event], recent = forced[event], event
            continue
        running = first if recent is None else found[recent]
        wanted = frames.get(event.frame, _wanted_stage(record, event, recent, forced, running))
        found[event] = min(max(wanted, earliest), max(latest[event], earliest))
    return found


def _wanted_stage(
    record: Record, event: TraceEvent, recent: TraceEvent | None, forced: dict[TraceEvent, int], running: int
) -> int:
    """The stage of the layer before an operation, or of the first layer inside a module entered since that layer."""
    outermost: TraceEvent | None = None
    around = event.parent
    while around is not None and recent is not None and around.number > recent.number:
        outermost, around = around, around.parent
    if outermost is None:
        return running
    inside = record.events[outermost.number : outermost.end]
    return next((forced[each] for each in inside if each in forced), running)


def _sources(event: TraceEvent) -> list[TraceEvent]:
    return [value.producer for value in event.reads if value.producer is not None] + event.after


def _takes(
    record: Record, stage: dict[TraceEvent, int], free: set[TraceEvent], count: int, outputs: list[Value]
) -> list[list[Value]]:
    last: dict[Value, int] = {value: 0 for value in record.inputs if value is not None}
    for event in record.events:
        last.update((value, stage[event]) for value in event.makes if event in stage)
    made = dict(last)
    for event in record.events:
        for value in event.reads:
            if value in last:
                # Numbers that are read may decide which way the code goes, so each later stage reads them too.
                until = _last_reader(record, event, stage, count) if event.is_read else stage.get(event, 0)
                last[value] = max(last[value], until)
    for value in outputs:
        if value in last:
            last[value] = count - 1
    inputs = [value for value in record.inputs if value is not None]
    return [inputs, *([value for value in last if made[value] < number <= last[value]] for number in range(1, count))]


def _last_reader(record: Record, event: TraceEvent, stage: dict[TraceEvent, int], count: int) -> int:
    around = event.parent
    while around is not None and around.parent is not None:
        stages = {stage[each] for each in record.events[around.number : around.end] if each in stage}
        if len(stages) == 1:  # other stages pass over this module, and over what is decided in it
            return stages.pop()
        around = around.parent
    return count - 1


def _last_random(record: Record, stage: dict[TraceEvent, int]) -> int:
    """The last stage that draws what depends on what was drawn in a stage before it."""
    found = 0
    for event in record.events:
        if event.draws and stage[event] > found:
            keyed: TraceEvent | None = event
            while keyed is not None and not (keyed.module is not None and draws(keyed.module)):
                keyed = keyed.parent
            inside = record.events[keyed.number : keyed.end] if keyed is not None else record.events
            if any(stage.get(each, stage[event]) != stage[event] for each in inside):
                found = stage[event]
    return found


def _refuse_frames(made: StageAssignment) -> None:
    """What is computed again as one must be in one stage."""
    stages: dict[int, tuple[int, TraceEvent]] = {}
    for event, stage in made.stage.items():
        if event.frame is not None:
            other, first = stages.setdefault(event.frame, (stage, event))
            if other != stage:
                raise TechniqueRefused(
                    f"what activation checkpointing computes again as one must be in one stage; {first} is in stage "
                    f"{other}, and {event} in stage {stage}. Change the stages."
                )


def _refuse_reads(made: StageAssignment) -> None:
    """A stage must not meet a number that only a later one can read."""
    ends = [0] * made.count
    for event, stage in made.stage.items():
        ends[stage] = max(ends[stage], event.number)
    for event in made.record.events:
        if event.is_read and event.reads and _last_reader(made.record, event, made.stage, made.count) == made.count - 1:
            needed = max(made.stage_made(value) for value in event.reads)
            early = [stage for stage in range(needed) if ends[stage] > event.number]
            if early:
                raise TechniqueRefused(
                    f"what the model's code decides by a tensor's numbers must be known where it goes on; {event} "
                    f"reads a value of stage {needed}, and stage {early[0]} has layers after it. Use stages in the "
                    f"order of the code."
                )


def _refuse_changes(made: StageAssignment) -> None:
    """A buffer must be in one stage if it changes."""
    users: dict[str, dict[int, TraceEvent]] = {}
    for event, stage in made.stage.items():
        for name in event.held:
            users.setdefault(name, {}).setdefault(stage, event)
    for event in made.stage:
        for name in event.changes:
            others = {stage: user for stage, user in users.get(name, {}).items() if stage != made.stage[event]}
            if others:
                stage, user = next(iter(others.items()))
                raise TechniqueRefused(
                    f"a buffer that changes must be used in one stage; {event} changes {name!r} in stage "
                    f"{made.stage[event]}, and {user} uses it in stage {stage}. Put both into one stage."
                )


def _settle_writes(made: StageAssignment) -> None:
    """What is written in place must not be needed as it was, and arrive whole where it is written."""
    readers: dict[object, list[tuple[TraceEvent, Value]]] = {}
    values = {value for event in made.record.events for value in (*event.reads, *event.makes)}
    for event in made.stage:
        for value in event.reads:
            readers.setdefault(value.storage, []).append((event, value))
    for writer, stage in made.stage.items():
        for storage in writer.writes:
            for reader, _ in readers.get(storage, ()):
                later = made.stage[reader]
                if (reader.number < writer.number and later > stage) or (writer.reshapes and later != stage):
                    raise TechniqueRefused(
                        f"a value must not be changed in place where another stage needs it as it was; {writer} of "
                        f"stage {stage} changes what {reader} of stage {later} reads. Use the operation "
                        f"that is not in place, or put both into one stage."
                    )
            arriving = {v for v in values if v.storage == storage and v in made.takes[stage] and stage}
            if len(arriving) > 1:
                raise TechniqueRefused(
                    f"a value must not be changed in place where views of it cross between stages; {writer} of stage "
                    f"{stage} changes {sorted(v.name for v in arriving)}, which share memory in the stage that made "
                    f"them. Use the operation that is not in place."
                )
            made.copies[stage].update(arriving)
