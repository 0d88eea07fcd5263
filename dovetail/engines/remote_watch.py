"""What a running feed knows of other nodes' cores: how many it has or could have, what the link to them carries, and
what a worker there gives. Borrows nothing: that is for the feed's plan to say.
"""

import dataclasses
import math
import threading

from dovetail.feeds.remote_cores import NoIdleCore, RemoteCores
from dovetail.feeds.running import FeedStats
from dovetail.profile.feed_link import measure_link
from dovetail.vocabulary import RemoteProfile

# How often other nodes are asked for idle cores, while a consumer waits for data.
ASK_SECONDS = 5.0


class RemoteWatch:
    """Asked by the thread that takes batches, which must not wait for other nodes: a thread of its own asks them, and
    what they said is known at a later look."""

    def __init__(self, remote: RemoteCores) -> None:
        self._remote = remote
        self._asked, self._looked, self._cores = -math.inf, -math.inf, 0
        self._asking: threading.Thread | None = None
        self._link: RemoteProfile | None = None
        self._items, self._were_busy, self._worker_seconds = 0, False, 0.0

    def look(self, now: float, stats: FeedStats, *, seconds: float, visits: float) -> RemoteProfile | None:
        """The cores that a feed has or could have; None where there are none. It looked `seconds` ago, and reads
        `visits` items for a batch."""
        self._observe(now, stats, seconds, visits)
        if now - self._asked > ASK_SECONDS and not (self._asking is not None and self._asking.is_alive()):
            self._asked = now
            self._asking = threading.Thread(target=self._ask, args=[stats.remote_workers], daemon=True)
            self._asking.start()
        cores = max(self._cores, stats.remote_workers)
        if not cores or self._link is None:
            return None
        return dataclasses.replace(self._link, cores=cores, worker_seconds=self._worker_seconds)

    def _observe(self, now: float, stats: FeedStats, seconds: float, visits: float) -> None:
        """Learn what a worker elsewhere takes for a batch, from looks one after another: between others the consumer
        was served, and they may have had nothing to do. In the first they are still starting."""
        batches, self._items = (stats.remote_items - self._items) / visits, stats.remote_items
        if batches and self._were_busy and now - self._looked < 2 * seconds:
            taken = stats.remote_workers * (now - self._looked) / batches
            self._worker_seconds = (self._worker_seconds + taken) / 2 if self._worker_seconds else taken
        self._looked, self._were_busy = now, batches > 0

    def _ask(self, have: int) -> None:
        idle = self._remote.count_idle()
        if idle and self._link is None:
            try:
                self._link = measure_link(self._remote, cores=idle)
            except NoIdleCore:
                idle = 0
        # Those that it has are not idle; both are counted at one moment, or they would be counted twice.
        self._cores = have + idle
