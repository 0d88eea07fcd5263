"""The names of a task's checkpoints, in a file that is read by its own name, because a listing may lag behind.

Each attempt has its file, `saved-attempt-0003.json`, with the names that those before it noted, too: an attempt that
was given up and wakes late overwrites nothing of its successor's. Which attempt is the last is in the fence.
"""

import hashlib
import json

from dovetail.store import RemoteFolder, check_fence
from dovetail.train.checkpoint.format import numbers_of
from dovetail.vocabulary import CheckpointError

# So many attempts that ended without a save take longer than any listing lags, and then it shows what there is.
_ATTEMPTS_BACK = 32


def note_names(root: RemoteFolder, attempt: int, names: list[str]) -> None:
    """Note the checkpoints that there are, as this attempt knows them."""
    body = json.dumps(names)
    digest = hashlib.sha256(body.encode()).hexdigest()
    root.write(_file(attempt), json.dumps({"sha256": digest, "names": body}).encode())


def noted_names(root: RemoteFolder, attempt: int | None = None) -> list[str]:
    """The names that the newest attempt which noted any has noted, of those up to `attempt` or the one in the fence."""
    last = _fence(root) if attempt is None else attempt
    for number in range(last, max(0, last - _ATTEMPTS_BACK), -1):
        if (names := _read(root, number)) is not None:
            return names
    return []


def _fence(root: RemoteFolder) -> int:
    try:
        return check_fence(root, 1 << 62)
    except CheckpointError:  # altered; it is made anew when the next attempt begins
        return 0


def _read(root: RemoteFolder, attempt: int) -> list[str] | None:
    try:
        outer = json.loads(root.read(_file(attempt)))
        body = outer["names"]
        if hashlib.sha256(body.encode()).hexdigest() != outer["sha256"]:
            return None  # torn, by a writer that was killed before it acknowledged
        return [name for name in json.loads(body) if numbers_of(name)]
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _file(attempt: int) -> str:
    return f"saved-attempt-{attempt:04d}.json"
