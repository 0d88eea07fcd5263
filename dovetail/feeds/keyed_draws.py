"""Random draws of a feed's functions, keyed by seed, epoch, stage and item.

A function may draw in two ways. Where it has a parameter `rng`, it is given a NumPy generator of its own, which works
in any worker. Or it draws from the global generators of Python, NumPy and torch; these are seeded before each call,
which only one thread of a process may do. So a function that draws from them runs in worker processes, each with
generators of its own, or, where it cannot travel, in the thread that asks for batches, with the generators put back
afterwards. It never runs in a thread beside the training, whose own draws it would change.

Whether a function draws from them is said (`draws=`), or read off its code, or found out: where the generators have
moved during a call that was not seeded, the call is made again from its key. Knows functions and generators; knows
nothing of workers.
"""

import contextlib
import ctypes
import functools
import inspect
import random
import re
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch

_DRAWING = re.compile(r"(?<![a-z])rand|(?<![a-z])shuffle|bernoulli|multinomial|permutation|dropout", re.IGNORECASE)
_DRAWING_NAMES = {"choice", "choices", "sample", "normal", "normal_", "uniform", "uniform_", "gauss", "exponential_"}
_METHODS = ("__call__", "forward", "__getitem__", "__getitems__", "__iter__", "__next__", "read")
_DEPTH = 4
_WANTS = "rng"
_TRIED = 20
_TWISTER_BYTES = 4 * 624 + 4


def wants_rng(function: Callable[..., Any]) -> bool:
    """Whether a function asks for a generator of its own, by a parameter `rng`.

    >>> wants_rng(lambda item, rng: item), wants_rng(len)
    (True, False)
    """
    try:
        return _WANTS in inspect.signature(function).parameters
    except (TypeError, ValueError):  # some functions that are not Python do not say
        return False


def make_rng(seed: int) -> numpy.random.Generator:
    """A generator of its own for one call.

    >>> bool(make_rng(5).random() == make_rng(5).random())
    True
    """
    return numpy.random.Generator(numpy.random.PCG64(seed))


def may_draw(function: Any, *, depth: int = _DEPTH) -> bool:
    """Whether the code of a function, of what it calls in its module, and of the parts of a callable object, names
    something that draws from global generators. A name is enough: to be wrong costs some speed only.

    >>> def flip(item):
    ...     return item[::-1] if random.random() < 0.5 else item
    >>> may_draw(flip), may_draw(len), may_draw(lambda operand: operand + 1)
    (True, False, False)
    """
    return _may_draw(function, depth, set())


def _may_draw(found: Any, depth: int, seen: set[int]) -> bool:
    if depth < 0 or id(found) in seen:
        return False
    seen.add(id(found))
    if isinstance(found, functools.partial):
        return any(_may_draw(each, depth, seen) for each in (found.func, *found.args, *found.keywords.values()))
    if isinstance(found, types.MethodType):
        return _may_draw(found.__func__, depth, seen) or _may_draw(found.__self__, depth - 1, seen)
    if isinstance(found, types.FunctionType):
        return _function_may_draw(found, depth, seen)
    if isinstance(found, list | tuple):
        return any(_may_draw(each, depth - 1, seen) for each in found[:64])
    if isinstance(found, type | types.ModuleType | types.BuiltinFunctionType):
        return bool(_names(getattr(found, "__name__", "")))
    if callable(found) or hasattr(found, "__dict__"):
        return _object_may_draw(found, depth, seen)
    return False


def _function_may_draw(function: types.FunctionType, depth: int, seen: set[int]) -> bool:
    names = list(_names_in(function.__code__))
    if any(map(_names, names)):
        return True
    held = [cell.cell_contents for cell in function.__closure__ or () if _is_set(cell)]
    called = [function.__globals__[name] for name in names if name in function.__globals__]
    ours = [each for each in called if not isinstance(each, types.ModuleType | type)]
    return any(_may_draw(each, depth - 1, seen) for each in (*held, *ours, *(function.__defaults__ or ())))


def _object_may_draw(found: Any, depth: int, seen: set[int]) -> bool:
    if _names(type(found).__name__):
        return True
    methods = [getattr(type(found), name, None) for name in _METHODS]
    code = any(_may_draw(each, depth, seen) for each in methods if isinstance(each, types.FunctionType))
    fields = vars(found).values() if hasattr(found, "__dict__") else ()
    parts = (each for each in fields if callable(each) or isinstance(each, list | tuple))
    return code or any(_may_draw(each, depth - 1, seen) for each in parts)


def code_names(found: Any) -> set[str]:
    """The names that the methods of an object use by which it gives items.

    >>> class Data:
    ...     def __getitem__(self, index):
    ...         return abs(index)
    >>> code_names(Data())
    {'abs'}
    """
    methods = [getattr(type(found), name, None) for name in _METHODS]
    own = [each for each in methods if isinstance(each, types.FunctionType)]
    return {name for each in own for name in _names_in(each.__code__)}


def _names(name: str) -> bool:
    return name in _DRAWING_NAMES or bool(_DRAWING.search(name))


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _names_in(each)


def _is_set(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def seed_global(seed: int) -> None:
    """Seed the global generators of Python, NumPy and torch's host. For the only thread of a process that draws.

    >>> with as_before():
    ...     seed_global(3)
    """
    random.seed(seed)
    numpy.random.seed(seed & 0xFFFFFFFF)
    torch.default_generator.manual_seed(seed)


def begin_trial() -> None:
    """Put the global generators where `has_drawn` tells whether anybody has drawn. For a thread that owns them."""
    seed_global(_TRIED)


def has_drawn() -> bool:
    """Whether anybody has drawn since `begin_trial`: 20 µs, where to ask all of them takes 110.

    >>> with as_before():
    ...     begin_trial()
    ...     before, _, after = has_drawn(), random.random(), has_drawn()
    >>> before, after
    (False, True)
    """
    python, theirs, host = _trial_states()
    return random.getstate() != python or _numpy_memory() != theirs or not torch.equal(_host_state(), host)


@functools.cache
def _trial_states() -> tuple[Any, Any, torch.Tensor]:
    with as_before():
        seed_global(_TRIED)
        return random.getstate(), _numpy_memory(), _host_state()


def _host_state() -> torch.Tensor:
    return torch.default_generator.get_state()


def _numpy_memory() -> Any:
    """The memory of NumPy's Mersenne twister. What it keeps of a pair of normal numbers is not in it, but seeding drops
    that, and to have one it must draw."""
    generator = numpy.random.get_bit_generator()  # type: ignore[attr-defined]
    if type(generator) is not numpy.random.MT19937:
        return repr(numpy.random.get_state())
    return ctypes.string_at(generator.ctypes.state_address, _TWISTER_BYTES)


def global_state() -> tuple[Any, ...]:
    """Where the global generators stand; equal as long as nobody draws.

    >>> global_state() == global_state()
    True
    """
    name, words, *rest = numpy.random.get_state(legacy=True)
    return random.getstate(), (name, words.tobytes(), *rest), torch.default_generator.get_state().numpy().tobytes()  # type: ignore[union-attr]


@contextlib.contextmanager
def as_before() -> Iterator[None]:
    """Within, the global generators may be seeded and drawn from; afterwards they are as before.

    >>> before = global_state()
    >>> with as_before():
    ...     _ = random.random()
    >>> global_state() == before
    True
    """
    own, theirs, host = random.getstate(), numpy.random.get_state(), torch.default_generator.get_state()
    try:
        yield
    finally:
        random.setstate(own)
        numpy.random.set_state(theirs)
        torch.default_generator.set_state(host)


@functools.cache
def _openmp() -> Any:
    """The library that torch counts its threads with, or None."""
    try:
        with open("/proc/self/maps") as maps:
            paths = {line.split(maxsplit=5)[5].strip() for line in maps if re.search(r"lib(g|i)?omp", line)}
        found = [ctypes.CDLL(path) for path in sorted(paths)]
        return next((each for each in found if hasattr(each, "omp_set_num_threads")), None)
    except OSError:
        return None


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Within, torch computes with one thread in this thread and as many as before in the others: sums of large tensors
    are rounded by how many threads have added them, and workers of a feed are many already.

    >>> with one_thread():
    ...     pass
    """
    library = _openmp()
    if library is None:
        yield
        return
    torch.get_num_threads()  # the first call in a thread sets the count, so it must not come after ours
    before = library.omp_get_max_threads()
    library.omp_set_num_threads(1)
    try:
        yield
    finally:
        library.omp_set_num_threads(before)
