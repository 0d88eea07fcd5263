"""Which tasks a user means: by name, by the beginning of an identity, by a pattern of names, or by parameters."""

import difflib
import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dovetail.vocabulary import DovetailError
from dovetail.vocabulary.redact import Redactor

Row = Mapping[str, Any]

# Fewer letters of an identity are more often the beginning of a word than meant as one.
_LEAST_LETTERS = 4
# So many names are told to whoever has named none of them.
_NAMED = 8


def match_tasks(words: Sequence[str], rows: Iterable[Row]) -> list[Row]:
    """The rows (`task`, `id` and `parameters` of each) that any of these words means, each once, in their own order.

    A word is a task's name; or the beginning of its id; or a pattern of names, as a shell has them; or what parameters
    are, `rate=0.1`, also as patterns and several with commas: `rate=0.1*,width=32`. Raises `DovetailError` for one that
    means nothing, or whose letters begin several ids.

    >>> rows = [{"task": f"net rate={rate}", "id": f"{rate}abcd", "parameters": {"rate": rate}} for rate in (0.1, 0.25)]
    >>> [row["task"] for row in match_tasks(["rate=0.2*"], rows)]
    ['net rate=0.25']
    """
    rows = list(rows)
    meant = {id(row) for word in words for row in _match(word, rows)}
    return [row for row in rows if id(row) in meant]


def match_task(word: str, rows: Iterable[Row]) -> Row:
    """The one row that a word means; raises `DovetailError` where there are several.

    >>> match_task("a*", [{"task": "ab", "id": "", "parameters": {}}])["task"]
    'ab'
    """
    found = match_tasks([word], rows)
    if len(found) > 1:
        raise _make_error(f"{word!r} must name one task; it names {_list([row['task'] for row in found])}.", found)
    return found[0]


def shorten_ids(ids: Sequence[str]) -> list[str]:
    """The ids with as few letters as tell them apart, all of one length.

    >>> shorten_ids(["abcdef", "abcdxx"])
    ['abcde', 'abcdx']
    """
    length = _LEAST_LETTERS
    while len({each[:length] for each in ids}) < len(set(ids)):
        length += 1
    return [each[:length] for each in ids]


def _match(word: str, rows: list[Row]) -> list[Row]:
    if found := [row for row in rows if row["task"] == word]:
        return found
    if len(word) >= _LEAST_LETTERS and (found := [row for row in rows if str(row.get("id", "")).startswith(word)]):
        if len({row["id"] for row in found}) > 1:
            names = _list([row["task"] for row in found])
            said = f"{word!r} must begin the id of one task; it begins those of {names}. Give more of it."
            raise _make_error(said, found)
        return found
    if found := [row for row in rows if fnmatch.fnmatchcase(row["task"], word) or _fits(word, row["parameters"])]:
        return found
    raise _make_error(_refusal(word, rows), rows)


def _fits(word: str, parameters: Mapping[str, Any]) -> bool:
    """Whether a task's parameters are as a word says."""
    wanted = [each.partition("=") for each in word.split(",")]
    return all(
        equals and name.strip() in parameters and _is_like(parameters[name.strip()], pattern.strip())
        for name, equals, pattern in wanted
    )


def _is_like(value: Any, pattern: str) -> bool:
    if fnmatch.fnmatchcase(str(value), pattern):
        return True
    try:  # 1e-3 is 0.001, however it is written
        return not isinstance(value, bool) and float(value) == float(pattern)
    except (TypeError, ValueError):
        return False


def _refusal(word: str, rows: list[Row]) -> str:
    names = [row["task"] for row in rows]
    near = difflib.get_close_matches(word, names, 1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    ways = "its name, the beginning of its id, a pattern such as 'net*', or parameters such as 'rate=0.1*'"
    return f"the task must be one of {_list(names)}, got {word!r}.{hint} It is named by {ways}."


def _make_error(said: str, rows: Iterable[Row]) -> DovetailError:
    """What is said names tasks, and names may hold secrets."""
    return DovetailError(Redactor(row["parameters"] for row in rows)(said))


def _list(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{names[:_NAMED]}{more}"
