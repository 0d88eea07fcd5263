"""Records: frozen values that go to JSON and come back equal.

Every noun of the vocabulary is a frozen, slotted, keyword-only dataclass with this module's two
functions as its way out and in. The annotations of a record are its schema; there is no other.
Knows nothing of what the records mean.
"""

import dataclasses
import functools
import json
import math
import sys
import types
import typing
from collections.abc import ItemsView, Iterator, KeysView, Mapping
from typing import Any, NoReturn, TypeVar, cast

from dovetail.vocabulary.errors import InvalidRecord

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
T = TypeVar("T")

_TEXT = frozenset({str})
_PLAIN = frozenset({str, int, float, bool, type(None)})
# JSON has no spelling for these three; Python's default writes bare words other readers reject.
_UNWRITABLE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
# Deeper than any configuration, and far from where Python's own recursion ends: others wrap what is read again.
DEPTH = 32
# How much of what was found an error repeats.
_SHOWN = 200


class FrozenDict(Mapping[str, Any]):
    """A mapping that cannot change and can be hashed, for use inside records.

    >>> FrozenDict({"width": 128})["width"]
    128
    """

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[str, Any] = types.MappingProxyType({})) -> None:
        if items.__class__ is FrozenDict:
            self._items: dict[str, Any] = items._items
            return
        # Events are made by the ten thousand, and what most of them hold is plain already.
        if (
            items.__class__ is dict
            and _TEXT.issuperset(map(type, items))
            and _PLAIN.issuperset(map(type, items.values()))
        ):
            self._items = items.copy()
        else:
            self._items = {
                str(key): value if value.__class__ in _PLAIN else freeze(value) for key, value in items.items()
            }

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    # What `Mapping` makes of the three above, only without a call into Python for every key.

    def __contains__(self, key: object) -> bool:
        return key in self._items

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, or another where there is none."""
        return self._items.get(key, default)

    def keys(self) -> KeysView[str]:
        """The keys."""
        return self._items.keys()

    def items(self) -> ItemsView[str, Any]:
        """The keys and their values."""
        return self._items.items()

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def __repr__(self) -> str:
        return repr(self._items)

    def __reduce__(self) -> tuple[type, tuple[dict[str, Any]]]:
        return FrozenDict, (self._items,)


def freeze(value: Any) -> Any:
    """The unchanging form of a JSON-like value: lists, ranges and arrays become tuples, dicts `FrozenDict`s.

    >>> freeze([1, [2, 3]])
    (1, (2, 3))
    """
    if value.__class__ is FrozenDict or value.__class__ in _PLAIN:  # told at a glance, which a mapping is not
        return value
    if isinstance(value, list | tuple | range):
        return value if value.__class__ is tuple and _PLAIN.issuperset(map(type, value)) else tuple(map(freeze, value))
    if isinstance(value, Mapping):
        return FrozenDict(value)
    if hasattr(value, "dtype") and hasattr(value, "tolist"):  # NumPy's arrays and numbers; it need not be imported
        return freeze(value.tolist())
    return value


def thaw(value: Any) -> Any:
    """What `freeze` was given, as a program may change it: tuples become lists, `FrozenDict`s dicts.

    >>> thaw(FrozenDict({"sizes": [1, [2, 3]]}))
    {'sizes': [1, [2, 3]]}
    """
    if isinstance(value, tuple):
        return [thaw(item) for item in value]
    if isinstance(value, FrozenDict):  # mostly of plain values, and lists of tasks have thousands of them
        return {key: item if item.__class__ in _PLAIN else thaw(item) for key, item in value.items()}
    return value


def check_bounds(value: Any, *, where: str, depth: int = DEPTH) -> None:
    """Refuse data that some reader of it could not take: lists and dicts nested deeper than `depth`, and whole numbers
    larger than a float can be. Looks without recursion.

    >>> check_bounds([[[1]]], where="a parameter", depth=2)
    Traceback (most recent call last):
    dovetail.vocabulary.errors.InvalidRecord: a parameter must be nested at most 2 deep; it is deeper.
    """
    waiting = [(value, 0)]
    while waiting:
        found, level = waiting.pop()
        if isinstance(found, int) and not _fits_float(found):
            raise InvalidRecord(
                f"{where} must have numbers of at most {sys.float_info.max:.2g}, got one of {found.bit_length()} bits."
            )
        if isinstance(found, Mapping | list | tuple):
            if level == depth:
                raise InvalidRecord(f"{where} must be nested at most {depth} deep; it is deeper.")
            inner = found.values() if isinstance(found, Mapping) else found
            waiting += [(each, level + 1) for each in inner]


def _fits_float(number: int) -> bool:
    return -sys.float_info.max <= number <= sys.float_info.max


def to_json(value: Any) -> Json:
    """A record, or any value inside one, as plain JSON data.

    >>> from dovetail.vocabulary import Stop
    >>> to_json(Stop(steps=5))["steps"]
    5
    """
    if value.__class__ in _PLAIN and value.__class__ is not float:
        return cast(Json, value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: to_json(getattr(value, name)) for name in schema(type(value))}
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"__float__": "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise InvalidRecord(
        f"a value inside a record must be plain data (numbers, text, lists, dicts), "
        f"got {type(value).__name__}: {value!r}. Pass it by name and look it up in the program."
    )


def from_json(cls: type[T], data: Any) -> T:
    """The record of class `cls` that `to_json` wrote as `data`. Unknown fields are refused.

    >>> from dovetail.vocabulary import Stop
    >>> from_json(Stop, {"steps": 5}).steps
    5
    """
    return cast(T, _decode(cls, data, cls.__name__))


def from_field(hint: Any, data: Any, where: str) -> Any:
    """What `to_json` wrote of a value of this type inside the record `where`; fields of records that this version does
    not know are passed over, which `from_json` refuses.

    >>> from_field(tuple[int, ...], [1, 2], "Shape.sizes")
    (1, 2)
    """
    if data.__class__ is hint and hint in _PLAIN:  # most fields are, of the many events that a store holds
        return data
    cls = _form(hint).record
    if cls is not None and isinstance(data, Mapping):
        data = {key: value for key, value in data.items() if key in schema(cls)}
    return _decode(hint, data, where)


def dumps(value: Any) -> str:
    """One line of JSON text for a record or plain data.

    >>> dumps({"a": (1, 2)})
    '{"a":[1,2]}'
    """
    return json.dumps(to_json(value), separators=(",", ":"), allow_nan=False)


def loads(cls: type[T], text: str | bytes) -> T:
    """The record of class `cls` in a line that `dumps` wrote.

    >>> from dovetail.vocabulary import Stop
    >>> loads(Stop, dumps(Stop(steps=5))) == Stop(steps=5)
    True
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRecord(f"{cls.__name__} must be read from a line of JSON; found: {error}.") from None
    try:
        return from_json(cls, data)
    except RecursionError:
        raise InvalidRecord(f"{cls.__name__} must be nested at most {DEPTH} deep; it is deeper.") from None


def plain(data: Any) -> Any:
    """JSON data with the non-finite numbers that `to_json` spelled out put back.

    >>> plain({"loss": {"__float__": "Infinity"}})
    {'loss': inf}
    """
    if isinstance(data, dict):
        if data.keys() == {"__float__"} and data["__float__"] in _UNWRITABLE:
            return _UNWRITABLE[data["__float__"]]
        return {key: plain(item) for key, item in data.items()}
    if isinstance(data, list):
        return [plain(item) for item in data]
    return data


@functools.cache
def schema(cls: type) -> dict[str, Any]:
    """The fields of a record that make it up, with their types."""
    hints = typing.get_type_hints(cls)
    # Fields that a record works out for itself are not part of it.
    return {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.init}


@dataclasses.dataclass(frozen=True, slots=True)
class _Form:
    """What a type is made of; `record` is the record in it, if there is one."""

    hint: Any
    origin: Any
    arguments: tuple[Any, ...]
    record: type | None


@functools.cache
def _form(hint: Any) -> _Form:
    hint = getattr(hint, "__supertype__", hint)  # text with a name of its own, such as a task's identity
    arguments = typing.get_args(hint)
    record = next((each for each in (hint, *arguments) if dataclasses.is_dataclass(each)), None)
    return _Form(hint, typing.get_origin(hint), arguments, cast("type | None", record))


def _decode(hint: Any, data: Any, where: str) -> Any:
    if data.__class__ is hint and hint in _PLAIN:
        return data
    form = _form(hint)
    hint, origin, arguments = form.hint, form.origin, form.arguments
    if hint is Any:
        return freeze(plain(data))
    if origin in (types.UnionType, typing.Union):
        if data is None and type(None) in arguments:
            return None
        return _decode(next(a for a in arguments if a is not type(None)), data, where)
    if form.record is hint:
        return _decode_record(cast(type, hint), data, where)
    if origin is tuple:
        return _decode_tuple(arguments, data, where)
    if origin in (Mapping, FrozenDict) or hint is FrozenDict:
        inner = arguments[1] if len(arguments) > 1 else Any
        _expect(isinstance(data, dict), "an object", data, where)
        return FrozenDict({key: _decode(inner, item, f"{where}.{key}") for key, item in data.items()})
    if hint is float:
        number = plain(data)
        _expect(isinstance(number, int | float) and not isinstance(number, bool), "a number", data, where)
        _expect(isinstance(number, float) or _fits_float(number), "a number that fits a float", data, where)
        return float(number)
    if isinstance(hint, type) and hint in (int, str, bool):
        right = isinstance(data, hint) and (hint is bool or not isinstance(data, bool))
        _expect(right, f"of type {hint.__name__}", data, where)
        return data
    raise AssertionError(f"{where}: a record's field has a type this codec does not know: {hint}")


def _decode_record(cls: type, data: Any, where: str) -> Any:
    _expect(isinstance(data, dict), "an object", data, where)
    hints = schema(cls)
    unknown = sorted(data.keys() - hints.keys())
    _expect(not unknown, f"one with fields among {sorted(hints)}", unknown, where)
    fields = {key: _decode(hints[key], item, f"{where}.{key}") for key, item in data.items()}
    try:
        return cls(**fields)
    except TypeError as error:  # a field without a default is missing
        raise InvalidRecord(f"{where} is incomplete: {error}") from None


def _decode_tuple(arguments: tuple[Any, ...], data: Any, where: str) -> tuple[Any, ...]:
    _expect(isinstance(data, list | tuple), "a list", data, where)
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        if arguments[0] in _PLAIN and all(item.__class__ is arguments[0] for item in data):
            return tuple(data)
        return tuple(_decode(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(data))
    _expect(len(data) == len(arguments), f"a list of {len(arguments)}", data, where)
    return tuple(
        _decode(hint, item, f"{where}[{i}]") for i, (hint, item) in enumerate(zip(arguments, data, strict=True))
    )


def _expect(holds: bool, wanted: str, found: Any, where: str) -> None:
    if not holds:
        _refuse(wanted, found, where)


def _refuse(wanted: str, found: Any, where: str) -> NoReturn:
    text = repr(found)
    raise InvalidRecord(f"{where} must be {wanted}, got {text if len(text) <= _SHOWN else text[:_SHOWN] + '...'}.")
