"""One SQLite file that holds events, profiles and plans. One process writes, many read."""

from dovetail.store.atomic_write import write_atomically
from dovetail.store.checkpoint_location import checkpoints_of, settle_checkpoints
from dovetail.store.database import Point, Store, free_bytes
from dovetail.store.fence import check_fence, raise_fence
from dovetail.store.lock import ControllerLock, holder
from dovetail.store.remote_folder import Folder, RemoteFolder, folder_of
from dovetail.store.scratch_folder import clear_scratch, make_scratch

__all__ = [
    "ControllerLock",
    "Folder",
    "Point",
    "RemoteFolder",
    "Store",
    "check_fence",
    "checkpoints_of",
    "clear_scratch",
    "folder_of",
    "free_bytes",
    "holder",
    "make_scratch",
    "raise_fence",
    "settle_checkpoints",
    "write_atomically",
]
