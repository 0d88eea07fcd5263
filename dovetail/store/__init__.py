"""One SQLite file that holds events, profiles and plans. One process writes, many read."""

from dovetail.store.atomic_write import folder_beside, replace, write_atomically
from dovetail.store.checkpoint_location import checkpoints_of, settle_checkpoints
from dovetail.store.database import Point, PointSummary, Store, event_of_row, free_bytes
from dovetail.store.fence import check_fence, raise_fence
from dovetail.store.link_profiles import keep_links, known_links
from dovetail.store.lock import ControllerLock, holder
from dovetail.store.ownership import check_private, make_private
from dovetail.store.remote_folder import Folder, RemoteFolder, folder_of
from dovetail.store.scratch_folder import clear_scratch, make_scratch

__all__ = [
    "ControllerLock",
    "Folder",
    "Point",
    "PointSummary",
    "RemoteFolder",
    "Store",
    "check_fence",
    "check_private",
    "checkpoints_of",
    "clear_scratch",
    "event_of_row",
    "folder_beside",
    "folder_of",
    "free_bytes",
    "holder",
    "keep_links",
    "known_links",
    "make_private",
    "make_scratch",
    "raise_fence",
    "replace",
    "settle_checkpoints",
    "write_atomically",
]
