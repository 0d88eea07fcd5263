"""One SQLite file that holds events, profiles and plans. One process writes, many read."""

from dovetail.store.database import Point, Store
from dovetail.store.elsewhere import Elsewhere, Folder, folder_of
from dovetail.store.fence import check_fence, raise_fence
from dovetail.store.kept import checkpoints_of, settle_checkpoints
from dovetail.store.lock import ControllerLock, holder
from dovetail.store.scratch import clear_scratch, scratch
from dovetail.store.whole import write_whole

__all__ = [
    "ControllerLock",
    "Elsewhere",
    "Folder",
    "Point",
    "Store",
    "check_fence",
    "checkpoints_of",
    "clear_scratch",
    "folder_of",
    "holder",
    "raise_fence",
    "scratch",
    "settle_checkpoints",
    "write_whole",
]
