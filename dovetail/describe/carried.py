"""Programs that no worker could import (a notebook's function, a lambda) travel as pickles.

A pickle is code. It is written into the store's private directory with an HMAC under the store's key, and loaded
only from there and only if the HMAC matches.
"""

import hashlib
import hmac
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dovetail.vocabulary import ProgramError

KEY_BYTES = 32

# What this process has described but not yet put into a store.
_CARRIED: dict[str, bytes] = {}


def carry(name: str, function: Callable[..., Any]) -> None:
    """Remember a function under a name until `deposit` puts it into a store."""
    import cloudpickle

    try:
        _CARRIED[name] = cloudpickle.dumps(function)
    except Exception as error:
        raise ProgramError(
            f"a program must be importable or picklable; {function!r} is neither ({error}). "
            f"Put it at the top level of a file."
        ) from error


def deposit(home: Path) -> None:
    """Write all carried functions into the store at `home`, signed."""
    for name, content in _CARRIED.items():
        folder = home / "programs"
        home.mkdir(parents=True, exist_ok=True, mode=0o700)  # `parents` alone would make it readable to others
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _write(folder / f"{name}.pickle", _sign(home, content) + content)


def fetch(home: Path, name: str) -> Callable[..., Any]:
    """The function of that name from the store at `home`, if its signature is right."""
    import cloudpickle

    path = home / "programs" / f"{name}.pickle"
    try:
        found = path.read_bytes()
    except OSError as error:
        raise ProgramError(f"the pickled program {name!r} must be in {path.parent}; found: {error}.") from error
    if not hmac.compare_digest(found[:32], _sign(home, found[32:])):
        raise ProgramError(
            f"{path} must carry this store's signature; it does not, so it was not loaded. Describe the workload again."
        )
    try:
        function: Callable[..., Any] = cloudpickle.loads(found[32:])
    except Exception as error:
        raise ProgramError(f"the pickled program {name!r} could not be loaded: {error!r}.") from error
    return function


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all, and private. One process at a time, the store's controller, writes."""
    beside = path.with_name(f".{path.name}.part")
    with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.rename(beside, path)


def _sign(home: Path, content: bytes) -> bytes:
    return hmac.new(_key(home), content, hashlib.sha256).digest()


def _key(home: Path) -> bytes:
    path = home / "key"
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not path.exists():
        _write(path, secrets.token_bytes(KEY_BYTES))
    if path.stat().st_mode & 0o077:
        raise ProgramError(f"{path} must be readable by its owner alone (mode 0600). Run: chmod 600 {path}")
    key = path.read_bytes()
    if len(key) != KEY_BYTES:  # anybody could sign under an empty key
        raise ProgramError(
            f"{path} must hold {KEY_BYTES} bytes, it holds {len(key)}. Remove it; then describe the workload again."
        )
    return key
