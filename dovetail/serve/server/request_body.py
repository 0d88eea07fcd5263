"""Who may ask, and what they send: bodies that are too large or too slow, and tokens."""

import asyncio
import hmac

from starlette.requests import Request

from dovetail.vocabulary import DovetailError

# What a request may be large, and how long its sender may take to send it.
MOST_BYTES, BODY_SECONDS = 32 << 20, 10.0


class RequestRefused(DovetailError):
    """A request that is answered with this status and this sentence.

    >>> RequestRefused(413, "too large").status
    413
    """

    def __init__(self, status: int, text: str, *, headers: dict[str, str] | None = None) -> None:
        super().__init__(text)
        self.status, self.headers = status, headers or {}


async def read_body(request: Request) -> bytes:
    """All of it. Raises `RequestRefused` where it is too large or too slow."""
    parts, size = [], 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                size += len(part)
                if size > MOST_BYTES:
                    raise RequestRefused(413, f"a request may have {MOST_BYTES} bytes at most.")
                parts.append(part)
    except TimeoutError:
        raise RequestRefused(408, f"a request must be sent within {BODY_SECONDS:g} s.") from None
    return b"".join(parts)


def check_token(request: Request, token: str) -> None:
    """Raise `RequestRefused` where there is a token and the request does not carry it."""
    given = request.headers.get("authorization", "").removeprefix("Bearer ")
    if token and not hmac.compare_digest(given.encode(), token.encode()):
        raise RequestRefused(401, "a request must carry 'Authorization: Bearer TOKEN' with the server's token.")
