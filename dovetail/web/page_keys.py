"""Who may look at the page and who may act: a token in the first link, then a cookie; and for actions a second token
that only a page of the same origin can have read.

The cookie goes to this origin alone (SameSite=Strict) and no script can read it (HttpOnly). Another site that makes a
browser send a request has neither the cookie nor the second token, and its origin is told. A server that listens on
loopback answers to names of loopback alone, so that no name that somebody else points there reaches it.
"""

import hmac
import secrets
from collections.abc import Mapping

LOOPBACK = ("127.0.0.1", "localhost", "::1")
ACTION_HEADER = "x-dovetail-action"


class PageKeys:
    """The secrets of one server, made anew at each start.

    >>> keys = PageKeys(host="127.0.0.1")
    >>> keys.admits(keys.token), keys.admits(""), keys.knows({keys.cookie(7420): keys.session}, port=7420)
    (True, False, True)
    """

    def __init__(self, *, host: str) -> None:
        self.token, self.session, self.action = (secrets.token_urlsafe(32) for _ in range(3))
        self._is_loopback = host in LOOPBACK

    def admits(self, token: str) -> bool:
        """Whether a link's token is ours; compared in constant time."""
        return hmac.compare_digest(token.encode(), self.token.encode())

    def cookie(self, port: int) -> str:
        """The cookie's name: cookies know no ports, and a user may have a server on each of several."""
        return f"dovetail-{port}"

    def knows(self, cookies: Mapping[str, str], *, port: int) -> bool:
        """Whether a browser has been here with the token."""
        return hmac.compare_digest(cookies.get(self.cookie(port), "").encode(), self.session.encode())

    def lets_act(self, headers: Mapping[str, str]) -> bool:
        """Whether a request to act comes from our own page: it has the second token and names no other origin."""
        given = headers.get(ACTION_HEADER, "")
        origin, host = headers.get("origin", ""), headers.get("host", "")
        same = origin.partition("://")[2] == host if origin else True
        site = headers.get("sec-fetch-site", "same-origin")
        return hmac.compare_digest(given.encode(), self.action.encode()) and same and site == "same-origin"

    def is_called_rightly(self, host: str) -> bool:
        """Whether a request's `Host` is one by which this server can be meant.

        >>> keys = PageKeys(host="127.0.0.1")
        >>> keys.is_called_rightly("localhost:7420"), keys.is_called_rightly("evil.example:7420")
        (True, False)
        """
        name = host.rpartition(":")[0] if host.count(":") == 1 or host.startswith("[") else host
        return not self._is_loopback or name.strip("[]") in LOOPBACK


POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data: blob:; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
"""What goes with every answer: nothing is loaded from elsewhere, framed, kept, or told to whom a link leads."""
