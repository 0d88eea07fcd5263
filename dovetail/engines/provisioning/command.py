"""Nodes from a command of the user's own: a script that starts, stops and lists them wherever they are.

It is called with `start NAME KIND ZONE spot|on-demand`, with `stop NAME`, or with `list`, upon which it prints a table
(CSV): `name,kind,zone,market,leaves`, where the last, the seconds until the node is taken away, is mostly empty.
"""

import csv
import io
import math
import time

from dovetail.describe.user_commands import ANSWER_SECONDS, ask_command, split_command
from dovetail.engines.provisioning.base import ProvidedNode, Provisioner
from dovetail.vocabulary import DovetailError
from dovetail.vocabulary.markets import Market
from dovetail.vocabulary.user_text import shorten

WHAT = "the command of --provision"
COLUMNS = ("name", "kind", "zone", "market", "leaves")
_MARKETS = {"spot": True, "on-demand": False}


class CommandProvisioner(Provisioner):
    """Calls a command, a script's path and maybe arguments, which has `answer_seconds` for each answer.

    >>> CommandProvisioner("no-such-script")
    Traceback (most recent call last):
    dovetail.vocabulary.errors.DovetailError: --provision must be a command; there is no 'no-such-script'.
    """

    def __init__(self, text: str, *, answer_seconds: float = ANSWER_SECONDS) -> None:
        self._words, self._answer_seconds = split_command(text), answer_seconds
        if not self._words:
            raise DovetailError(f"--provision must be a command; there is no {text!r}.")

    def start(self, name: str, market: Market) -> None:
        """Have the command start a node."""
        self._call("start", name, market.kind, market.zone, "spot" if market.spot else "on-demand")

    def stop(self, name: str) -> None:
        """Have the command stop a node."""
        self._call("stop", name)

    def nodes(self) -> list[ProvidedNode]:
        """What the command lists."""
        rows = csv.DictReader(io.StringIO(self._call("list")))
        missing = [name for name in COLUMNS if name not in (rows.fieldnames or ())]
        if missing:
            raise DovetailError(
                f"{WHAT} must list nodes in a table with the columns {','.join(COLUMNS)}; {missing[0]!r} is not there."
            )
        return [self._node(row) for row in rows]

    def _node(self, row: dict[str, str]) -> ProvidedNode:
        try:
            leaves = time.time() + float(row["leaves"]) if row["leaves"] else math.inf
            market = Market(kind=row["kind"], zone=row["zone"], spot=_MARKETS[row["market"]])
        except (KeyError, TypeError, ValueError) as error:
            raise DovetailError(
                f"{WHAT} must list of each node its market, spot or on-demand, and in how many seconds "
                f"it leaves, or nothing; found {shorten(str(row))} ({error})."
            ) from None
        return ProvidedNode(name=row["name"], market=market, leaves_seconds=leaves)

    def _call(self, *arguments: str) -> str:
        return ask_command([*self._words, *arguments], what=WHAT, answer_seconds=self._answer_seconds)
