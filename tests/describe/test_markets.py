"""Prices from tables and commands: what they say, and what is refused with which words."""

import functools
import gzip
import subprocess
from pathlib import Path

import pytest

from dovetail.describe.markets import MarketSource, align_prices, check_fresh, check_kinds, parse_prices, show_time
from dovetail.describe.user_commands import ask_command
from dovetail.vocabulary import DovetailError, InvalidRecord, from_json, to_json
from dovetail.vocabulary.markets import Market, PriceHistory

HEAD = "time,kind,zone,market,price\n"
TABLE = HEAD + (
    "2023-01-01T00:00:00Z,v100,a,spot,0.92\n"
    "2023-01-01T00:00:00Z,v100,a,on demand,3.06\n"
    "2023-01-01T06:00:00+00:00,v100,a,spot,\n"
    "2023-01-01T12:00:00Z,v100,a,spot,1.5\n"
)
SPOT, SURE = Market(kind="v100", zone="a"), Market(kind="v100", zone="a", spot=False)


def test_a_price_holds_until_the_next_of_its_market_and_an_empty_one_is_no_offer(tmp_path: Path) -> None:
    (tmp_path / "prices.csv").write_text(TABLE)
    history = MarketSource(str(tmp_path / "prices.csv")).ask()
    hours = [(history.at(1672531200.0 + hour * 3600)) for hour in (-1, 1, 7, 20)]
    assert hours == [{}, {SPOT: 0.92, SURE: 3.06}, {SURE: 3.06}, {SPOT: 1.5, SURE: 3.06}]
    assert from_json(PriceHistory, to_json(history)) == history
    (tmp_path / "prices.csv.gz").write_bytes(gzip.compress(TABLE.encode()))
    assert MarketSource(str(tmp_path / "prices.csv.gz")).ask() == history


def test_what_was_known_at_a_moment_has_nothing_later() -> None:
    history = align_prices(parse_prices(TABLE, where="t"), where="t")
    assert history.until(1672531200.0 + 7 * 3600).times == history.times[:2]
    assert history.until(0.0).times == ()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("2023-01-01T00:00:00Z,v100,a,spot,-0.3", "line 2 of t: a price must be a number of at least 0, got '-0.3'"),
        ("2023-01-01T00:00:00Z,v100,a,spot,cheap", "must be a number of at least 0, got 'cheap'"),
        ("2023-01-01T00:00:00Z,v100,a,spot,nan", "must be a number of at least 0, got 'nan'"),
        ("2023-01-01T00:00:00,v100,a,spot,1", "'2023-01-01T00:00:00' names no time zone"),
        ("2023-01-01T00:00:00+02:00,v100,a,spot,1", r"times must be in UTC; .* is in another time zone. Convert them"),
        ("yesterday,v100,a,spot,1", "a time must be written as 2023-01-01T00:00:00Z, got 'yesterday'"),
        ("2023-01-01T00:00:00Z,v100,a,futures,1", "a market must be 'on demand' or 'spot', got 'futures'"),
        ("2023-01-01T00:00:00Z,,a,spot,1", "a price must be of a kind of device; its field is empty"),
        ("2023-01-01T00:00:00Z,v100", "line 2 of t must have 5 fields, as the first line has; it has fewer"),
        ("", "t must have at least one price; it has none"),
    ],
)
def test_a_line_that_cannot_be(line: str, words: str) -> None:
    with pytest.raises(InvalidRecord, match=words):
        parse_prices(HEAD + line + "\n", where="t")


def test_another_form_and_a_second_price_for_one_moment() -> None:
    with pytest.raises(InvalidRecord, match=r"must have the columns time, kind, .*; 'kind' is not there"):
        parse_prices("time,price\n", where="t")
    line = "2023-01-01T00:00:00Z,v100,a,spot,1\n"
    with pytest.raises(InvalidRecord, match="line 3 of t: a market must have one price at a time; v100 in a, spot has"):
        parse_prices(HEAD + line + line, where="t")


def test_gaps_are_named() -> None:
    late = "2023-01-04T00:00:00Z,v100,a,on demand,3.06\n"
    with pytest.raises(
        InvalidRecord,
        match=r"t must have a price at least every 36 h 0 min; v100 in a, spot has none between 2023-01-01T12:00:00Z "
        r"and 2023-01-04T00:00:00Z. Add what is missing, or an empty price",
    ):
        align_prices(parse_prices(TABLE + late, where="t"), where="t")
    withdrawn = HEAD + "2023-01-01T00:00:00Z,v100,a,spot,\n2023-01-09T00:00:00Z,v100,a,spot,1\n"
    assert len(align_prices(parse_prices(withdrawn, where="t"), where="t").times) == 2


def test_kinds_that_nobody_knows_and_prices_of_another_time() -> None:
    history = align_prices(parse_prices(TABLE, where="t"), where="t")
    with pytest.raises(InvalidRecord, match=r"kinds of a market must be known, a10, k80; found v100. Give --speed"):
        check_kinds(history, ["k80", "a10"], what="Give --speed.")
    newest = history.times[-1]
    check_fresh(history, now=newest + 3600)
    with pytest.raises(InvalidRecord, match=r"clock in UTC .* 2 h 0 min ahead. Is it in another time zone\?"):
        check_fresh(history, now=newest - 7200)
    with pytest.raises(InvalidRecord, match=f"prices must be of the last 36 h 0 min; .* --at {show_time(newest)}"):
        check_fresh(history, now=newest + 40 * 3600)


@pytest.mark.process
def test_a_command_is_asked_again_and_its_answers_add_up(tmp_path: Path) -> None:
    count, script = tmp_path / "count", tmp_path / "prices.sh"
    script.write_text(
        f"#!/bin/sh\necho >> {count}\nhour=$(wc -l < {count} | tr -d ' ')\n"
        'echo time,kind,zone,market,price\necho "2023-01-01T0$hour:00:00Z,v100,$1,spot,0.$hour"\n'
    )
    script.chmod(0o755)
    source = MarketSource(f"{script} west")
    assert [source.ask().prices for _ in range(2)] == [((0.1,),), ((0.1,), (0.2,))]
    assert source.ask().markets == (Market(kind="v100", zone="west"),)


@pytest.mark.process
@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo no network >&2; exit 3", "a market's command .* must end with 0; it ended with 3 and said: no network"),
        ("echo hello", "must have the columns time, .*; 'time' is not there"),
        ("sleep 86397 & wait", "must answer within 200.0 ms; it did not, and was ended"),
        ("printf '\\351'", "must print text in UTF-8; found: .*0xe9"),
    ],
)
def test_a_command_that_fails_says_nothing_useful_or_hangs(
    script: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurried = functools.partial(ask_command, answer_seconds=0.2 if "sleep" in script else 50.0)
    monkeypatch.setattr("dovetail.describe.markets.ask_command", hurried)
    file = tmp_path / "prices.sh"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    with pytest.raises(DovetailError, match=words):
        MarketSource(str(file)).ask()
    assert subprocess.run(["pgrep", "-f", "^sleep 86397$"], check=False).returncode == 1


def test_nothing_there() -> None:
    with pytest.raises(InvalidRecord, match=r"a market must be a table or a command; there is no 'nowhere.csv'"):
        MarketSource("nowhere.csv").ask()
