"""A table as a packing in time, in the solver's words, and packings as schedules.

Resources are the devices of a kind on a node, with the node's memory, disk and cores where they can run short; which
devices is decided afterwards, and always possible: the devices of a node are alike. What goes over several nodes is
left out, and then nothing is proven.

Time is in ticks, durations rounded down. Starting each activity as soon as those that ended before it have ended keeps
every set that overlaps one that overlapped before; so a schedule in seconds has one in ticks that is no longer, and
what cannot be packed in ticks cannot be done; and a packing in ticks has a schedule in seconds that is longer by
less than a tick for each activity on a longest path.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from dovetail.planning.room import shared_needs
from dovetail.planning.schedule.list_schedule import copies
from dovetail.planning.schedule.table import Start, Table
from dovetail.planning.solver import Activity, Goal, Packed, pack
from dovetail.vocabulary import Option, Placement

# Amounts of memory are counted in at most so many parts of the largest node's.
_PARTS = 1 << 20


class PackingModel:
    """Whether everything can end by a target, or how to make a goal small, in the solver's words.

    `round_up` gives packings whose ticks are seconds enough, and proves nothing.
    """

    def __init__(self, table: Table, tick_seconds: float, *, round_up: bool = False) -> None:
        self.table, self._tick = table, tick_seconds
        rounded = math.ceil if round_up else math.floor
        self._ticks = [max(1, rounded(mode.seconds / tick_seconds)) for mode in table.modes]
        brief = {group for mode in table.modes if mode.seconds < tick_seconds for group in mode.groups}
        # What takes less than a tick is given one, so that it takes devices at all.
        self._raised = 0 if round_up else sum(len(table.groups[group].tasks) for group in brief)
        self._pools = _Pools(table)
        owners, activities = copies(table, self._ticks)
        self._owners: list[tuple[int, int]] = []
        self._activities: list[Activity] = []
        last: dict[tuple[int, int], int] = {}
        for mode, activity in zip(owners, activities, strict=True):
            for node in self._pools.nodes_for(table.modes[mode].option):
                draws = self._pools.draws(table.modes[mode].option, node)
                after = last.get((mode, node))
                last[mode, node] = len(self._activities)
                latest = self._latest(mode)
                self._activities.append(dataclasses.replace(activity, draws=draws, after=after, latest=latest))
                self._owners.append((mode, node))

    def _latest(self, number: int) -> int | None:
        """The tick by which a mode must start for its tasks to end by their deadlines."""
        mode, groups = self.table.modes[number], self.table.groups
        ends = zip(mode.groups, mode.ends(groups), strict=True)
        seconds = min(groups[group].due_seconds - end for group, end in ends)
        return None if seconds == math.inf else math.floor(seconds / self._tick + 1e-9) + self._raised

    @property
    def is_whole(self) -> bool:
        """Whether it leaves nothing out, so that what it refutes cannot be."""
        return self.table.is_complete and self._pools.is_exact

    @property
    def size(self) -> int:
        """How many optional intervals it has."""
        return len(self._activities)

    @property
    def modes(self) -> list[int]:
        """The mode of each activity."""
        return [mode for mode, _ in self._owners]

    @property
    def slack_seconds(self) -> float:
        """By how much rounding may have made an end later."""
        return self._raised * self._tick

    def ask(self, target: float, starts: Sequence[Start], work: float, goal: Goal | None = None) -> Packed:
        """Look for a packing that ends by the target, near a schedule known already; with a goal, for the best."""
        busy = [
            (
                math.floor(placement.end_seconds / self._tick),
                self._pools.held(placement),
            )
            for placement in self.table.running
        ]
        return pack(
            self._hinted(starts),
            needs=self.table.needs,
            capacities=self._pools.capacities,
            busy=busy,
            horizon=math.floor(target / self._tick) + (self._raised if goal else 0),
            work=work,
            goal=goal,
        )

    def refuted(self, target: float) -> float:
        """The seconds that a target without a packing proves to be too few."""
        if not self.is_whole:
            return 0.0
        return (math.floor(target / self._tick) + 1 - self._raised) * self._tick * (1 - 1e-9)

    def decode(self, ticks: Mapping[int, int]) -> tuple[Start, ...]:
        """Devices and true seconds for a packing, each activity as early as those that end before it allow."""
        ordered = sorted(ticks, key=lambda number: (ticks[number], number))
        devices = self._devices(ordered, ticks)
        ends: dict[int, float] = {}
        starts = []
        for number in ordered:
            before = [ends[other] for other in ends if ticks[other] + self._activities[other].ticks <= ticks[number]]
            held = (
                placement.end_seconds
                for placement in self.table.running
                if math.floor(placement.end_seconds / self._tick) <= ticks[number]
            )
            start = max([0.0, *before, *held])
            mode = self._owners[number][0]
            ends[number] = start + self.table.modes[mode].seconds
            starts.append(Start(mode=mode, start_seconds=start, devices=devices[number]))
        return tuple(starts)

    def _devices(self, ordered: Sequence[int], ticks: Mapping[int, int]) -> dict[int, tuple[int, ...]]:
        """Devices in the order of ticks: at each there are enough free ones, because the packing counted them."""
        until = self._pools.busy_until(self._tick)
        given = {}
        for number in ordered:
            mode, node = self._owners[number]
            option = self.table.modes[mode].option
            free = [each for each in self._pools.devices[option.kind, node] if until[each] <= ticks[number]]
            given[number] = tuple(free[: option.count])
            for device in given[number]:
                until[device] = ticks[number] + self._activities[number].ticks
        return given

    def _hinted(self, starts: Sequence[Start]) -> list[Activity]:
        """The activities, those of the known schedule with their starts."""
        waiting: dict[tuple[int, int], list[int]] = {}
        for each in sorted(starts, key=lambda each: -each.start_seconds):
            node = self._pools.node_of(self.table.cluster.devices[each.devices[0]].name)
            waiting.setdefault((each.mode, node), []).append(round(each.start_seconds / self._tick))
        return [
            dataclasses.replace(activity, hint=waiting[owner].pop() if waiting.get(owner) else None)
            for owner, activity in zip(self._owners, self._activities, strict=True)
        ]


class _Pools:
    """The resources of each node by number: its devices of each kind, and what else can run short."""

    def __init__(self, table: Table) -> None:
        cluster = table.cluster
        self._numbers = {node.name: number for number, node in enumerate(cluster.nodes)}
        self._cluster, self._table = cluster, table
        self.devices: dict[tuple[str, int], list[int]] = {}
        for number, device in enumerate(cluster.devices):
            self.devices.setdefault((device.kind, self._numbers[device.node]), []).append(number)
        self._names: dict[tuple[str, int], int] = {}
        self.capacities: list[int] = []
        for (kind, node), devices in self.devices.items():
            self._add(f"kind {kind}", node, len(devices))
        drawing = [*table.shapes, *(placement.option for placement in table.running)]
        memory = [node.memory_bytes for node in cluster.nodes] + [option.host_bytes for option in drawing]
        disk = [node.disk_bytes for node in cluster.nodes] + [option.disk_bytes for option in drawing]
        self._memory_part, self._disk_part = _part(memory), _part(disk)
        # Where amounts had to be rounded, no packing of theirs does not mean that there is none.
        rounded = any(size % self._memory_part for size in memory) or any(size % self._disk_part for size in disk)
        is_apart = all(option.nodes == 1 for option in table.shapes)
        self.is_exact = is_apart and (not rounded or table.only_devices_bind)
        for number, host in enumerate(cluster.nodes if not table.only_devices_bind else ()):
            self._add("host", number, host.memory_bytes // self._memory_part)
            if host.disk_bytes:
                self._add("disk", number, host.disk_bytes // self._disk_part)
            self._add("cores", number, host.cores)

    def _add(self, name: str, node: int, capacity: int) -> None:
        self._names[name, node] = len(self.capacities)
        self.capacities.append(capacity)

    def held(self, placement: Placement) -> dict[int, int]:
        """What a placement that runs takes of each resource of its nodes that is counted."""
        nodes = {self.node_of(device) for device in placement.devices}
        return {r: amount for node in nodes for r, amount in self.draws(placement.option, node).items()}

    def draws(self, option: Option, node: int) -> dict[int, int]:
        """What an option takes of each resource of one of its nodes that is counted."""
        host_bytes, disk_bytes, cores = shared_needs(option)
        drawn = {
            f"kind {option.kind}": option.count_on_node,
            "host": -(-host_bytes // self._memory_part),
            "disk": -(-disk_bytes // self._disk_part),
            "cores": cores,
        }
        named = {(name, node): amount for name, amount in drawn.items() if amount}
        return {self._names[key]: amount for key, amount in named.items() if key in self._names}

    def nodes_for(self, option: Option) -> list[int]:
        """The nodes that hold the option when they are empty; none for one that goes over several."""
        if option.nodes > 1:
            return []
        able = [node for kind, node in self.devices if kind == option.kind]
        return [node for node in able if all(self.capacities[r] >= a for r, a in self.draws(option, node).items())]

    def node_of(self, device: str) -> int:
        """The number of a device's node."""
        return self._numbers[self._cluster.device(device).node]

    def busy_until(self, tick: float) -> dict[int, int]:
        """The tick from which each device is free of what runs now."""
        ends: dict[str, float] = {}
        for placement in self._table.running:
            for name in placement.devices:
                ends[name] = max(ends.get(name, 0.0), placement.end_seconds)
        return {
            number: math.floor(max(0.0, ends.get(device.name, 0.0)) / tick)
            for number, device in enumerate(self._cluster.devices)
        }


def _part(amounts: Sequence[int]) -> int:
    """Bytes in one part: the greatest common divisor where that leaves few enough, so that nothing is rounded."""
    most, common = max([1, *amounts]), math.gcd(*amounts) or 1
    return common if most // common <= _PARTS else -(-most // _PARTS)
