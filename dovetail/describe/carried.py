"""Programs that no worker could import (a notebook's function, a lambda) travel as pickles.

A pickle is code. It is written into the store's private directory with an HMAC under a key of this user's own, and
loaded only from there and only if the HMAC matches. The key lies in the user's folder, not in the store: a store that
came from elsewhere, however it was made, has no pickle that would be loaded here.
"""

import hashlib
import hmac
import os
import secrets
import tempfile
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


def deposit(home: Path, *, write: Callable[[Path, bytes], None]) -> None:
    """Put all carried functions into the store at `home`, signed; `write` makes a private file, whole or not at all."""
    for name, content in _CARRIED.items():
        folder = home / "programs"
        home.mkdir(parents=True, exist_ok=True, mode=0o700)  # `parents` alone would make it readable to others
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write(folder / f"{name}.pickle", _sign(_key(make=True), name, content) + content)


def fetch(home: Path, name: str) -> Callable[..., Any]:
    """The function of that name from the store at `home`, if this user has signed it."""
    import cloudpickle

    path = home / "programs" / f"{name}.pickle"
    try:
        found = path.read_bytes()
    except OSError as error:
        raise ProgramError(f"the pickled program {name!r} must be in {path.parent}; found: {error}.") from error
    if not hmac.compare_digest(found[:32], _sign(_key(), name, found[32:])):
        raise ProgramError(
            f"{path} must carry this user's signature; it does not, so it was not loaded: it was altered, or comes "
            f"from another user, machine or version (the key is {key_path()}). Run the workload again to sign it here."
        )
    try:
        function: Callable[..., Any] = cloudpickle.loads(found[32:])
    except Exception as error:
        raise ProgramError(f"the pickled program {name!r} could not be loaded: {error!r}.") from error
    return function


def key_path() -> Path:
    """Where this user's key is: `dovetail/key` in `$XDG_CONFIG_HOME`, by default `~/.config`."""
    configured = os.environ.get("XDG_CONFIG_HOME", "")
    try:
        folder = Path(configured) if os.path.isabs(configured) else Path.home() / ".config"
    except RuntimeError as error:
        raise ProgramError(f"a user who signs programs must have a home; found: {error} Set HOME.") from error
    return folder / "dovetail" / "key"


def _sign(key: bytes, name: str, content: bytes) -> bytes:
    return hmac.new(key, name.encode() + b"\0" + content, hashlib.sha256).digest()


def _key(*, make: bool = False) -> bytes:
    path = key_path()
    try:
        if make and not path.exists():
            _make_key(path)
        mode, key = path.stat().st_mode, path.read_bytes()
    except OSError as error:
        raise ProgramError(
            f"programs that travel as pickles must be signed under a key of this user's, {path}; found: {error}. Run "
            f"the workload on this machine, or copy the key from where it was run. XDG_CONFIG_HOME moves its folder."
        ) from error
    if mode & 0o077:
        raise ProgramError(f"{path} must be readable by its owner alone (mode 0600). Run: chmod 600 {path}")
    if len(key) != KEY_BYTES:  # anybody could sign under an empty key
        raise ProgramError(
            f"{path} must hold {KEY_BYTES} bytes, it holds {len(key)}. Remove it; then describe the workload again."
        )
    return key


def _make_key(path: Path) -> None:
    """Whole or not at all; of two processes that make one at once, both use the first."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, made = tempfile.mkstemp(dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(made, path)
        except FileExistsError:
            pass
        except OSError:  # file systems without links
            os.replace(made, path)
    finally:
        Path(made).unlink(missing_ok=True)
