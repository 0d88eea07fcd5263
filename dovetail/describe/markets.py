"""Prices as users have them: a table (CSV), or a command that prints one and is asked again.

A row says from when on an hour of one device costs how much: `time,kind,zone,market,price`, where the time is in UTC,
the market is `on demand` or `spot`, and an empty price says that it is not offered from then on. A price holds until
the next row of its market, for a day and a half at most: what is older nobody knows, and it is named as a gap. Knows
files and commands; does not know what is rented.
"""

import csv
import datetime
import gzip
import io
import math
import os
from collections.abc import Iterable
from pathlib import Path

from dovetail.describe.user_commands import ask_command, split_command
from dovetail.vocabulary import InvalidRecord
from dovetail.vocabulary.markets import Market, PriceHistory
from dovetail.vocabulary.units import show_seconds, show_some

COLUMNS = ("time", "kind", "zone", "market", "price")
HOLDS_SECONDS = 36 * 3600.0
# A clock that is ahead by more than this is another one, or in another time zone.
_AHEAD_SECONDS = 300.0
_MARKETS = {"spot": True, "on demand": False}
Changes = dict[Market, dict[float, float | None]]


class MarketSource:
    """Where prices come from: the path of a table, or a command with its arguments. `ask` reads it, again and again:
    of a command, answers add to what it said before, so that one that prints only the prices of now makes a history.

    >>> MarketSource("no-such-prices.csv").ask()
    Traceback (most recent call last):
    dovetail.vocabulary.errors.InvalidRecord: a market must be a table or a command; there is no 'no-such-prices.csv'.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._known: Changes = {}

    def ask(self) -> PriceHistory:
        """All prices known by now."""
        path = Path(self._text)
        if path.is_file() and not (os.access(path, os.X_OK) and path.suffix not in (".csv", ".gz")):
            return align_prices(parse_prices(_table_text(path), where=str(path)), where=str(path))
        return align_prices(self._ask_command(), where=self._text)

    def _ask_command(self) -> Changes:
        words = split_command(self._text)
        if not words:
            raise InvalidRecord(f"a market must be a table or a command; there is no {self._text!r}.")
        said = ask_command(words, what="a market's command")
        for market, prices in parse_prices(said, where=f"what {self._text!r} prints").items():
            self._known.setdefault(market, {}).update(prices)
        return self._known


def parse_prices(text: str, *, where: str) -> Changes:
    """The prices of each market by time, from a table's text; what cannot be is refused with its line.

    >>> text = "time,kind,zone,market,price\\n2023-01-01T00:00:00Z,v100,a,spot,0.92\\n"
    >>> parse_prices(text, where="prices.csv")
    {Market(kind='v100', zone='a', spot=True): {1672531200.0: 0.92}}
    """
    rows = csv.DictReader(io.StringIO(text))
    missing = [name for name in COLUMNS if name not in (rows.fieldnames or ())]
    if missing:
        raise InvalidRecord(
            f"{where} must have the columns {', '.join(COLUMNS)} in its first line; {missing[0]!r} is not there."
        )
    found: Changes = {}
    for number, row in enumerate(rows, start=2):
        place = f"line {number} of {where}"
        if any(row[name] is None for name in COLUMNS):
            raise InvalidRecord(f"{place} must have {len(COLUMNS)} fields, as the first line has; it has fewer.")
        market, time = _market(row, place), _time(row["time"], place)
        prices = found.setdefault(market, {})
        if time in prices:
            raise InvalidRecord(
                f"{place}: a market must have one price at a time; {market} has a second at {row['time']}."
            )
        prices[time] = _price(row["price"], place)
    if not found:
        raise InvalidRecord(f"{where} must have at least one price; it has none.")
    return found


def align_prices(changes: Changes, *, where: str) -> PriceHistory:
    """One row for each time at which some price changes; gaps are refused."""
    times = sorted({time for prices in changes.values() for time in prices})
    for market, prices in changes.items():
        _refuse_gap(market, sorted(prices), prices, times[-1], where)
    markets, columns = sorted(changes), []
    for market in markets:
        now: float | None = None
        column = []
        for time in times:
            now = changes[market].get(time, now) if time in changes[market] else now
            column.append(now)
        columns.append(column)
    return PriceHistory(times=tuple(times), markets=tuple(markets), prices=tuple(zip(*columns, strict=True)))


def check_kinds(history: PriceHistory, known: Iterable[str], *, what: str) -> None:
    """Refuse a market with kinds that are not `known`, which is said as `what` to do about it.

    >>> history = PriceHistory(times=(0.0,), markets=(Market(kind="v10", zone="a"),), prices=((1.0,),))
    >>> check_kinds(history, ["v100"], what="Give --speed v10=1.")
    Traceback (most recent call last):
    dovetail.vocabulary.errors.InvalidRecord: kinds of a market must be known, v100; found v10. Give --speed v10=1.
    """
    names = sorted(known)
    strange = sorted({market.kind for market in history.markets} - set(names))
    if strange:
        raise InvalidRecord(
            f"kinds of a market must be known, {show_some(names) or 'and none is'}; found {show_some(strange)}. {what}"
        )


def check_fresh(history: PriceHistory, *, now: float) -> None:
    """Refuse prices of another time than now: from a clock that is ahead, or too old to hold."""
    newest = history.times[-1]
    if newest > now + _AHEAD_SECONDS:
        raise InvalidRecord(
            f"prices must be of a clock in UTC that agrees with this machine's; the newest is of {show_time(newest)}, "
            f"{show_seconds(newest - now)} ahead. Is it in another time zone? Else give --at, the time to plan for."
        )
    if newest < now - HOLDS_SECONDS:
        raise InvalidRecord(
            f"prices must be of the last {show_seconds(HOLDS_SECONDS)}; the newest is of {show_time(newest)}. Give "
            "newer "
            f"ones, or --at {show_time(newest)} to plan for that time."
        )


def show_time(seconds: float) -> str:
    """A moment as tables have it.

    >>> show_time(1672531200.0)
    '2023-01-01T00:00:00Z'
    """
    moment = datetime.datetime.fromtimestamp(seconds, tz=datetime.UTC)
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def parse_time(text: str, *, where: str) -> float:
    """A moment in UTC, in seconds since 1970.

    >>> parse_time("2023-01-01T00:00:00Z", where="--at")
    1672531200.0
    """
    return _time(text, where)


def _table_text(path: Path) -> str:
    try:
        raw = path.read_bytes()
        return (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise InvalidRecord(f"a market's table must be CSV, plain or gzipped; {path} is not: {error}.") from None


def _market(row: dict[str, str], place: str) -> Market:
    name = row["market"].strip().lower().replace("-", " ").replace("_", " ")
    if name not in _MARKETS:
        raise InvalidRecord(f"{place}: a market must be 'on demand' or 'spot', got {row['market']!r}.")
    kind, zone = row["kind"].strip(), row["zone"].strip()
    if not kind:
        raise InvalidRecord(f"{place}: a price must be of a kind of device; its field is empty.")
    return Market(kind=kind, zone=zone, spot=_MARKETS[name])


def _time(text: str, place: str) -> float:
    try:
        moment = datetime.datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidRecord(f"{place}: a time must be written as 2023-01-01T00:00:00Z, got {text!r}.") from None
    if moment.utcoffset() is None:
        raise InvalidRecord(
            f"{place}: a time must say that it is in UTC, as 2023-01-01T00:00:00Z does; {text!r} names no time zone."
        )
    if moment.utcoffset():
        raise InvalidRecord(f"{place}: times must be in UTC; {text!r} is in another time zone. Convert them.")
    return moment.timestamp()


def _price(text: str, place: str) -> float | None:
    if not text.strip():
        return None
    try:
        price = float(text)
    except ValueError:
        price = math.nan
    if not 0 <= price < math.inf:
        raise InvalidRecord(
            f"{place}: a price must be a number of at least 0, got {text!r}. Leave it empty where it is not offered."
        )
    return price


def _refuse_gap(market: Market, times: list[float], prices: dict[float, float | None], end: float, where: str) -> None:
    """Refuse a price that would have to hold for longer than it does."""
    for time, following in zip(times, [*times[1:], end], strict=True):
        if prices[time] is not None and following - time > HOLDS_SECONDS:
            raise InvalidRecord(
                f"{where} must have a price at least every {show_seconds(HOLDS_SECONDS)}; {market} has none between "
                f"{show_time(time)} and {show_time(following)}. Add what is missing, or an empty price where it was "
                "not offered."
            )
