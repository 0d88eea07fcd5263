"""One SQLite file that holds events, profiles and plans. One process writes, many read."""

from dovetail.store.database import Point, Store
from dovetail.store.fence import check_fence, raise_fence
from dovetail.store.lock import ControllerLock, holder
from dovetail.store.whole import write_whole

__all__ = ["ControllerLock", "Point", "Store", "check_fence", "holder", "raise_fence", "write_whole"]
