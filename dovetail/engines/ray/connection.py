"""Connecting to a Ray cluster, or starting one on this machine, always with Ray's token authentication.

Whoever can talk to a Ray cluster can run code in it. Its token is what keeps others out, so a cluster without one is
refused (`survey` asks every node). What Dovetail itself passes through Ray is JSON, and a feed's stages and items, as
bytes that only the processes at both ends unpickle; nothing else is but what Ray packs for its own calls.
"""

import contextlib
import importlib
import importlib.metadata
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dovetail.engines.detection import available_cores
from dovetail.engines.private_folder import PrivateFolder
from dovetail.engines.ray.shipped_code import pack
from dovetail.store import make_scratch
from dovetail.vocabulary import DovetailError, Program

LOCAL = "local"
OLDEST = (2, 52)  # the first with token authentication
# A cluster of our own keeps nothing in it: events and checkpoints go elsewhere. Ray's least is 75 MiB.
OBJECT_STORE_BYTES = 80 << 20
# Sockets of a cluster of our own have up to 92 bytes more, of 107 that a name may have.
LONGEST_ROOT = 15


def installed() -> Any:
    """The module `ray`, imported at first use; refuses with what to install where it is not there."""
    try:
        import ray
    except ImportError as error:
        raise DovetailError(
            f"the engine 'ray' must have Ray installed; found: {error}. Run: pip install 'dovetail[ray]'"
        ) from error
    return ray


def installed_serve() -> Any:
    """Ray Serve, imported, or a `DovetailError` with what to install."""
    try:
        from ray import serve
    except ImportError as error:
        raise DovetailError(
            f"serving on a Ray cluster must have Ray Serve installed; found: {error}. Run: pip install "
            f"'dovetail[serve,ray-serve]'"
        ) from error
    return serve


@contextlib.contextmanager
def connected(address: str, *, programs: Iterable[Program], home: Path) -> Iterator[None]:
    """This process as a driver of the Ray cluster at `address`: `host:port`, `auto` for the one that runs on this
    machine, or `local` for one that is started here and ends afterwards. The programs' code goes to its nodes."""
    with contextlib.ExitStack() as stack:
        _check_version()
        stack.enter_context(_authenticated(home if address == LOCAL else None))
        ray = installed()
        _read_environment()
        folder = make_scratch(home.resolve(), prefix="code-")
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        pack(programs, folder)
        own = _own_cluster(stack) if address == LOCAL else {}
        stack.callback(ray.shutdown)
        with _private_files():
            _initialize(ray, address, str(folder), own)
        yield


def _own_cluster(stack: contextlib.ExitStack) -> dict[str, Any]:
    """The settings of a cluster of our own. Ray lets everybody write in its folders, also where it unpacks the code
    that its workers import: they lie in one that nobody else can enter."""
    root = Path(tempfile.gettempdir())
    folder = PrivateFolder("ray-", root=root if len(os.fsencode(root)) <= LONGEST_ROOT else Path("/tmp"))
    stack.callback(folder.close)
    return {
        "_temp_dir": str(folder.path),
        "num_cpus": len(available_cores()),
        "object_store_memory": OBJECT_STORE_BYTES,
        "include_dashboard": False,
    }


@contextlib.contextmanager
def _private_files() -> Iterator[None]:
    """What is made within, and by processes that are started within, is this user's alone."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def _initialize(ray: Any, address: str, folder: str, own: Mapping[str, Any]) -> None:
    try:
        ray.init(
            address=address,
            runtime_env={"working_dir": folder},
            log_to_driver=False,
            logging_level="ERROR",
            **own,
        )
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        first = " ".join(str(error).split())[:500]
        raise DovetailError(
            f"a Ray cluster must answer at {address!r}; found: {first} Start one with RAY_AUTH_MODE=token ray start "
            f"--head and have its token in RAY_AUTH_TOKEN_PATH here, or use --address local to have one started."
        ) from error


def _check_version() -> None:
    try:
        version = importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError:
        return  # `installed` says what to do
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        raise DovetailError(
            f"Ray must be {'.'.join(map(str, OLDEST))} or newer, which authenticates by token; found {version}. "
            f"Run: pip install --upgrade 'dovetail[ray]'"
        )


@contextlib.contextmanager
def _authenticated(home: Path | None) -> Iterator[None]:
    """The environment in which Ray demands a token: the user's own, or for a cluster of ours a fresh private one."""
    if os.environ.get("RAY_AUTH_MODE", "token") == "disabled":
        raise DovetailError(
            "Ray's token authentication must stay on; RAY_AUTH_MODE is 'disabled'. Unset it, or set it to 'token'."
        )
    wanted = {"RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0"}
    named = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    own = _private_token(home) if home is not None and not named else None
    if own is not None:
        wanted["RAY_AUTH_TOKEN_PATH"] = str(own)
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update({name: value for name, value in wanted.items() if name not in os.environ})
    try:
        yield
    finally:
        for name in [name for name, value in before.items() if value is None]:
            del os.environ[name]
        if own is not None:
            own.unlink(missing_ok=True)


def _private_token(home: Path) -> Path:
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = home.resolve() / "ray-token"
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32))
    return path


def _read_environment() -> None:
    """Ray reads its settings when it is imported, which somebody may have done before, and keeps the token it saw."""
    raylet: Any = importlib.import_module("ray._raylet")
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()
