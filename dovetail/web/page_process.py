"""The process of the live page: a port, a token, a browser where there is one, and a server until it is stopped.

Imports what the extra `ui` installs only when it starts.
"""

import asyncio
import contextlib
import ipaddress
import os
import socket
import sys
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import quote

from dovetail.vocabulary import DovetailError, extras
from dovetail.web.page_keys import LOOPBACK, PageKeys

# So many ports are tried where the first one is taken.
PORTS = 50


def check_installed() -> None:
    """Raise `DovetailError` where what the page's server needs is not there."""
    extras.check_installed("the live page", "starlette", "uvicorn", extra="ui")


def serve(
    stores: Sequence[Path],
    *,
    host: str = "127.0.0.1",
    port: int = 7420,
    read_only: bool = False,
    browser: bool = True,
    said: Callable[[str], None],
) -> None:
    """Serve the page of these stores until SIGINT or SIGTERM; `said` is given lines for the user, the address first."""
    check_installed()
    listener = _listen(host, port)
    found = listener.getsockname()[1]
    if found != port and port:
        said(f"port {port} is taken; this is the next free one")
    keys = PageKeys(host=host)
    address = f"http://{_url_host(host)}:{found}/?token={quote(keys.token)}"
    said(address)
    if host not in LOOPBACK:
        can = "look" if read_only else "look and act"
        said(f"whoever has this link and reaches {host} can {can}; what is sent is not encrypted")
    asyncio.run(_serve(stores, listener, keys, found, read_only, address if browser and _has_browser() else ""))


async def _serve(
    stores: Sequence[Path], listener: socket.socket, keys: PageKeys, port: int, read_only: bool, address: str
) -> None:
    import uvicorn

    from dovetail.web.server import PageServer

    app = PageServer(stores, keys=keys, port=port, read_only=read_only).app
    # Pages listen for ever: that they are cut off at the end is no error to tell the user of.
    config = uvicorn.Config(
        app, log_level="critical", access_log=False, timeout_graceful_shutdown=1, server_header=False, lifespan="on"
    )
    if address:
        asyncio.get_running_loop().run_in_executor(None, webbrowser.open, address)
    with contextlib.suppress(KeyboardInterrupt):
        await uvicorn.Server(config).serve(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    """A socket on the port, or on the next one that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    last: Exception | None = None
    for candidate in range(port, port + PORTS) if port else (0,):
        listener = socket.socket(family)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, candidate))
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # answers wait for no receipt
            listener.listen(128)
            return listener
        except (OSError, OverflowError) as error:
            listener.close()
            last = error
            if not _is_taken(error):
                break
    raise DovetailError(
        f"the live page must have a port of {host}, {port} or one of the {PORTS} after it; found: {last}. Use --port "
        f"or --host."
    )


def _is_taken(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in (98, 48, 13)


def _url_host(host: str) -> str:
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(host).is_unspecified:
            return socket.gethostname()
    return f"[{host}]" if ":" in host else host


def _has_browser() -> bool:
    """Whether a window can open here: over SSH it would open on the wrong machine, or in the terminal."""
    if os.environ.get("SSH_CONNECTION"):
        return False
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
