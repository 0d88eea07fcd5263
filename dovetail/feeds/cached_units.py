"""The cache of a running feed: units take from it what it has of them, and leave there what they have read."""

from dovetail.feeds.item_bytes import item_bytes
from dovetail.feeds.item_cache import DroppedItem, ItemCache
from dovetail.feeds.stage_chain import ItemRun
from dovetail.feeds.unit_cutting import UnitCutter
from dovetail.feeds.units import FeedUnit


class CachedUnits:
    """Stands before one of the stages. Called by the worker that has the unit."""

    def __init__(self, cache: ItemCache, cutter: UnitCutter, place: int) -> None:
        self._cache, self._cutter, self.place = cache, cutter, place

    def look_up(self, unit: FeedUnit) -> None:
        """Take from the cache what it has of a unit that is to be read; where that is all, the stages before are
        passed."""
        hits = {number: found[0] for number in unit.items.numbers if (found := self._cache.get(number)) is not None}
        missing = [order for order, number in enumerate(unit.items.numbers) if number not in hits]
        # Groups are read whole, so that what is missing cannot be read alone.
        if not hits or (missing and self._cutter.aligned > 1):
            return
        unit.hits = hits
        if missing:
            unit.items.places = [unit.items.places[order] for order in missing]
            unit.items.numbers = [unit.items.numbers[order] for order in missing]
        else:
            unit.items = ItemRun(unit.epoch, [], [], [], batch=unit.items.batch)
            self._merge(unit)
            unit.at = self.place

    def keep(self, unit: FeedUnit) -> None:
        """Put into the cache what the stages before it gave, and what it had to the rest."""
        for number, value in zip(unit.items.numbers, unit.items.values or (), strict=True):
            self._cache.put(number, value)
        if not unit.items.faults:
            kept = set(unit.items.numbers) | (unit.hits or {}).keys()
            for number in self._cutter.numbers(unit):
                if number not in kept:
                    self._cache.put(number, DroppedItem)
        if unit.hits:
            self._merge(unit)

    def _merge(self, unit: FeedUnit) -> None:
        own = dict(zip(unit.items.numbers, unit.items.values or (), strict=True)) | (unit.hits or {})
        places, numbers, values = [], [], []
        for place, number in enumerate(self._cutter.numbers(unit), start=unit.start):
            if number in own and own[number] is not DroppedItem:
                places.append(place)
                numbers.append(number)
                values.append(own[number])
        unit.items.places, unit.items.numbers, unit.items.values = places, numbers, values
        unit.items.held_bytes = sum(map(item_bytes, values))
        unit.hits = None
