"""Random numbers that depend on seed, step, microbatch and module, and on nothing that happened before.

torch's global generator is reseeded from a key before every batch, every microbatch and every evaluation, so a task
that was stopped draws what it would have drawn. Modules that draw (dropout and the like) reseed once more on entry
from their own name, so that they draw the same whichever device or process they sit in; what the program has compiled
does so as a whole. Python's and NumPy's generators, from which only some feeds and losses draw, are reseeded at each
epoch and carried in the checkpoint: reseeding them at every step costs 60 µs on a slow core, more than all the rest.

Activation checkpointing runs a module's forward again during backward, and must draw the same there. A module
called several times has one key a call, and the run inside backward finds its key by the generator's seed on entry,
which torch restores with the rest of the generator's state.
"""

import contextlib
import ctypes
import functools
import inspect
import random
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy
import torch
from torch import nn

from dovetail.feeds.keys import key, mix
from dovetail.train.postponed_compiler import COMPILED_CALL, is_compiled
from dovetail.vocabulary import CheckpointError

SCHEME = "keyed-1"
#: Of a microbatch: for each module, the generator's seed on entry of its second call and on, to the call's number.
Calls = dict[int, dict[int, int]]
#: One seeding of a device's generator within a step: the microbatch, the number of the module that was entered (None
#: where the microbatch began), and of its call.
Seeding = tuple[int, int | None, int]
DRAWING_WORDS = re.compile(r"drop|rand|bernoulli|multinomial|normal_|noise|exponential_|gumbel", re.IGNORECASE)


def reseed(*parts: int | str) -> None:
    """Seed Python's, NumPy's and torch's global generators from a key. A session under way gets its own back."""
    _Carried.take(None)
    _reseed(key(*parts))


def carried_state() -> dict[str, Any]:
    """Where Python's and NumPy's generators stand, as plain data.

    >>> before = carried_state()
    >>> _ = random.random()
    >>> carried_state() == before
    False
    """
    return _to_plain(_raw())


def host_drew() -> bool:
    """Whether anything was drawn from torch's generator of the host since that was seeded last.

    >>> torch.manual_seed(0) and host_drew(), torch.rand(()) is not None and host_drew()
    (False, True)
    """
    return _drew(torch.default_generator)


def draw_again() -> Callable[[], None]:
    """A function that lets the global generators draw again what they would draw now.

    >>> again = draw_again()
    >>> first = random.random()
    >>> again()
    >>> random.random() == first
    True
    """
    own = [torch.default_generator, *(torch.cuda.default_generators if torch.cuda.is_initialized() else ())]
    states, carried = [generator.get_state() for generator in own], _raw()

    def put_back() -> None:
        for generator, state in zip(own, states, strict=True):
            generator.set_state(state)
        _put(carried)

    return put_back


def _reseed(seed: int) -> None:
    random.seed(seed)
    numpy.random.seed(seed & 0xFFFFFFFF)
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)


class _Carried:
    """Python's and NumPy's generators as one session has them. There is one of each in a process, so they belong to
    one session at a time, and whoever takes them puts the other's aside."""

    _owner: "_Carried | None" = None

    def __init__(self) -> None:
        self._aside: _Raw | None = None

    @staticmethod
    def take(taker: "_Carried | None") -> None:
        """Give the generators to `taker`, as it had them last."""
        owner = _Carried._owner
        if owner is taker:
            return
        if owner is not None:
            owner._aside = _raw()
        _Carried._owner = taker
        if taker is not None and taker._aside is not None:
            _put(taker._aside)

    def stand(self) -> dict[str, Any]:
        """Where they stand for this session, as plain data."""
        return _to_plain(_raw() if _Carried._owner is self or self._aside is None else self._aside)

    def put(self, found: Mapping[str, Any]) -> None:
        """Take them, and put them where `stand` found them."""
        _Carried.take(self)
        version, numbers, gauss = found["python"]
        name, words, *rest = found["numpy"]
        _put(((version, tuple(numbers), gauss), (name, numpy.array(words, dtype=numpy.uint32), *rest)))


# As the generators give them. Members of a gang take turns with them at every step, and lists of their 1,249 words
# would cost each a millisecond.
_Raw = tuple[Any, Any]


def _raw() -> _Raw:
    return random.getstate(), _NumPy.stand()


def _put(found: _Raw) -> None:
    random.setstate(found[0])
    _NumPy.put(found[1])


def _to_plain(found: _Raw) -> dict[str, Any]:
    (version, numbers, gauss), (name, words, *rest) = found[0], _NumPy.legacy(found[1])
    return {"python": [version, list(numbers), gauss], "numpy": [name, words.tolist(), *rest]}


class _NumPy:
    """Where NumPy's global generator stands. To ask NumPy and to tell it takes 130 µs each; to copy the memory of its
    Mersenne twister, 2. But what it keeps of a pair of normal numbers is not in that memory, so the copy counts only
    where there is none: where the memory is as it was when there was none, for to have one it must have drawn."""

    WORDS = 624
    BYTES = 4 * WORDS + 4
    _without: "tuple[int, bytes] | None" = None
    """The generator's address and memory when it last had no half of a pair, as far as is known."""

    @classmethod
    def stand(cls) -> Any:
        """Its memory where that is all, else what NumPy gives."""
        address = cls._address()
        memory = ctypes.string_at(address, cls.BYTES) if address else b""
        if memory and cls._without == (address, memory):
            return memory
        found: Any = numpy.random.get_state(legacy=True)
        cls._without = (address, memory) if memory and not found[3] else None
        return memory if cls._without else found

    @classmethod
    def put(cls, found: Any) -> None:
        """Put NumPy's global generator into a state that `stand` has given."""
        address = cls._address()
        if isinstance(found, bytes) and isinstance(cls.stand(), bytes):
            ctypes.memmove(address, found, cls.BYTES)
        else:
            numpy.random.set_state(cls.legacy(found))
        cls._without = (address, found) if isinstance(found, bytes) and address else None

    @classmethod
    def legacy(cls, found: Any) -> Any:
        """A state as `numpy.random.get_state(legacy=True)` gives it."""
        if not isinstance(found, bytes):
            return found
        words = numpy.frombuffer(found, dtype=numpy.uint32, count=cls.WORDS)
        return "MT19937", words.copy(), int.from_bytes(found[4 * cls.WORDS :], sys.byteorder), 0, 0.0

    @classmethod
    def _address(cls) -> int:
        """Of the memory, or 0 where the generator is another one than NumPy's own."""
        generator = numpy.random.get_bit_generator()  # type: ignore[attr-defined]
        return int(generator.ctypes.state_address) if type(generator) is numpy.random.MT19937 else 0


class KeyedRandomness:
    """Keys what one model draws. Call `begin` before each microbatch, and `close` when the session ends.

    Runs several times a step, so it spends nanoseconds: keys are mixed from keys, and nothing is cleared.
    """

    _evaluating: "tuple[KeyedRandomness, int] | None" = None
    """Whose evaluation is under way, and its key. There is one at a time in a process."""

    def __init__(self, model: nn.Module, *, seed: int, device: torch.device) -> None:
        self._seed = seed
        self._generator = generator_of(device)
        self._on_cpu = device.type == "cpu"
        self._steps, self._epoch, self._base, self._microbatch = key(seed, "steps"), 0, 0, 0
        self._seeder: Callable[[Seeding], bool] | None = None
        self._calls: Calls = {}
        self._carried = _Carried()
        self._watches = self._drew_before = False
        keyed = ((name, module) for name, module in model.named_modules() if _has_key(module))
        self._release = [_call_on_entry(module, self._enter(name)) for name, module in keyed]

    def begin(self, step: int, microbatch: int) -> None:
        """From here on draws belong to this step and microbatch."""
        self._base, self._microbatch = mix(mix(self._steps, step), microbatch), microbatch
        self._calls = {}
        if self._seeder is None or not self._seeder((microbatch, None, 0)):
            self._reseed_torch(self._base)
        self._drew_before = False

    @contextlib.contextmanager
    def seeding(self, seeder: Callable[[Seeding], bool]) -> Iterator[None]:
        """Within, `seeder` is called before the device's generator is seeded; where it gives True, it has done that."""
        self._seeder = seeder
        try:
            yield
        finally:
            self._seeder = None

    def seed_of(self, seeding: Seeding, step: int) -> int:
        """The seed that a seeding has at a step."""
        microbatch, number, call = seeding
        base = mix(mix(self._steps, step), microbatch)
        return base if number is None else mix(base ^ number, call)

    def mark(self) -> "tuple[int, Calls]":
        """The microbatch that began last, for `return_to`."""
        return self._base, self._calls

    def return_to(self, mark: "tuple[int, Calls]") -> None:
        """From here on draws belong to a microbatch that began earlier, whose backward comes after other forwards."""
        self._base, self._calls = mark
        self._reseed_torch(self._base)

    def before_batch(self, epoch: int, index: int) -> None:
        """From here on draws belong to this batch of the feed; index -1 is the epoch's beginning."""
        if _Carried._owner is not self._carried:
            _Carried.take(self._carried)
        if index < 0:
            self._epoch = key(self._seed, "epoch", epoch)
            _reseed(self._epoch)
        else:
            self._reseed_torch(mix(self._epoch, index))

    @contextlib.contextmanager
    def evaluation(self, step: int) -> Iterator[None]:
        """Within, draws belong to the evaluation after `step`; afterwards it is as if nothing was drawn."""
        _Carried.take(self._carried)
        before = self._carried.stand()
        self._base = key(self._seed, "evaluate", step)
        self._calls = {}
        _reseed(self._base)
        KeyedRandomness._evaluating = self, self._base
        try:
            yield
        finally:
            KeyedRandomness._evaluating = None
            self._carried.put(before)

    @staticmethod
    def begin_part(name: str) -> None:
        """From here on draws belong to this part of the evaluation under way, if one is, whatever was drawn before."""
        if KeyedRandomness._evaluating is not None:
            evaluating, whole = KeyedRandomness._evaluating
            evaluating._base, evaluating._calls = key(whole, "part", name), {}
            _reseed(evaluating._base)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Within, `drew` also knows of what was drawn before a module that draws was entered."""
        self._watches = True
        try:
            yield
        finally:
            self._watches = False

    def drew(self) -> bool:
        """Whether anything was drawn from torch's generators since they were seeded last, or, while watched, since the
        microbatch began. What a module draws counts, unless it leaves its generator as if it had not."""
        return self._drew_before or _drew(self._generator) or (not self._on_cpu and _drew(torch.default_generator))

    def state(self) -> dict[str, Any]:
        """All that decides what will be drawn next."""
        return {"scheme": SCHEME, "seed": self._seed, "carried": self._carried.stand()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Draw from here on what would have been drawn after `state`."""
        if state["scheme"] != SCHEME:
            raise CheckpointError(
                f"random numbers must be keyed by the scheme {SCHEME!r}, the checkpoint was written under "
                f"{state['scheme']!r}. Resume it with the version of Dovetail that wrote it."
            )
        self._carried.put(state["carried"])

    def enter(self, name: str, call: int) -> None:
        """Draw from here on what the module of this name draws in its `call`-th call of this microbatch."""
        self._generator.manual_seed(mix(self._base ^ key(name), call))

    def put_aside(self) -> Callable[[], None]:
        """Put torch's generators aside for another session; gives what puts them back."""
        own, host = self._generator.get_state(), torch.default_generator.get_state()

        def put_back() -> None:
            _Carried.take(self._carried)
            torch.default_generator.set_state(host)
            self._generator.set_state(own)

        return put_back

    def close(self) -> None:
        """Leave the model as it was."""
        for release in self._release:
            release()
        self._release = []
        if _Carried._owner is self._carried:
            _Carried._owner = None

    def _reseed_torch(self, seed: int) -> None:
        self._generator.manual_seed(seed)
        if not self._on_cpu:
            torch.default_generator.manual_seed(seed)

    def _enter(self, name: str) -> Callable[[], None]:
        number = key(name)
        generator = self._generator

        def enter() -> None:
            if self._watches and _drew(generator):
                self._drew_before = True
            later = self._calls.get(number)
            call = 0
            if later is None:
                self._calls[number] = {}
            elif torch._C._current_graph_task_id() != -1:  # run again inside backward
                call = later.get(generator.initial_seed(), 0) if later else 0
            else:
                call = len(later) + 1
                later[generator.initial_seed()] = call
            if self._seeder is None or not self._seeder((self._microbatch, number, call)):
                generator.manual_seed(mix(self._base ^ number, call))

        return enter


def _call_on_entry(module: nn.Module, enter: Callable[[], None]) -> Callable[[], None]:
    """Call `enter` before each forward of this module; gives what undoes it."""
    vars(module)[_ENTER] = enter
    undo = _enter_on_call(module)

    def release() -> None:
        undo()
        vars(module).pop(_ENTER, None)

    return release


def _enter_on_call(module: nn.Module) -> Callable[[], None]:
    """Have the module enter, as it says itself, before each forward; gives what undoes it.

    The module becomes of a class that is its own but for `forward`. A hook would do the same, but sends every call
    through torch's slow path: 36 µs a dropout on a slow core, against 17 µs. Of one that is compiled a hook would be
    compiled, too, so what it calls instead of `forward` is replaced.
    """
    compiled = vars(module).get(COMPILED_CALL)
    if compiled is not None:
        return _replace_compiled_call(module, compiled)
    if "forward" in vars(module) or isinstance(module, torch.jit.ScriptModule):  # patched, or not Python
        return module.register_forward_pre_hook(lambda *arguments: _enter_unless_compiling(module)).remove
    own: Any = getattr(type(module), _OWN, type(module))
    module.__class__ = _make_keyed_class(own)

    def undo() -> None:
        module.__class__ = own

    return undo


def _replace_compiled_call(module: nn.Module, compiled: Callable[..., Any]) -> Callable[[], None]:
    def call(*arguments: Any, **named: Any) -> Any:
        _enter_unless_compiling(module)
        return compiled(*arguments, **named)

    vars(module)[COMPILED_CALL] = call

    def undo() -> None:
        vars(module)[COMPILED_CALL] = compiled

    return undo


def _enter_unless_compiling(module: nn.Module) -> None:
    # A compiler cannot follow seeding: it would cut the program's graph there, or fail where the program asks for one
    # (fullgraph=True). What is compiled draws from the key that was set before it was called.
    if not torch.compiler.is_compiling():
        vars(module)[_ENTER]()


def count_call(module: nn.Module) -> None:
    """Count a call of this module that was not made here: for code that skips a call which another process makes.

    >>> count_call(nn.Dropout(0.5))  # not keyed: nothing to count
    """
    enter = vars(module).get(_ENTER)
    if enter is not None:
        enter()


@contextlib.contextmanager
def uncounted(module: nn.Module | None) -> Iterator[None]:
    """Within, calls of the module and of those inside it neither count nor seed anything.

    >>> with uncounted(nn.Dropout(0.5)):
    ...     pass
    """
    inside = [vars(each) for each in module.modules() if _ENTER in vars(each)] if module is not None else []
    before = [names[_ENTER] for names in inside]
    for names in inside:
        names[_ENTER] = lambda: None
    try:
        yield
    finally:
        for names, enter in zip(inside, before, strict=True):
            names[_ENTER] = enter


_ENTER, _OWN = "_dovetail_enter", "_dovetail_own_class"


@functools.cache
def _make_keyed_class(own: Any) -> Any:
    def forward(self: nn.Module, *arguments: Any, **named: Any) -> Any:
        _enter_unless_compiling(self)
        return own.forward(self, *arguments, **named)

    names = {"__module__": own.__module__, "__qualname__": own.__qualname__, "__doc__": own.__doc__, _OWN: own}
    return type(own.__name__, (own,), {"forward": forward, **names})


def _drew(generator: torch.Generator) -> bool:
    fresh = torch.Generator(generator.device).manual_seed(generator.initial_seed())
    return not torch.equal(fresh.get_state(), generator.get_state())


def generator_of(device: torch.device) -> torch.Generator:
    """What a device's operations draw from unless told otherwise.

    >>> generator_of(torch.device("cpu")) is torch.default_generator
    True
    """
    if device.type == "cuda":
        torch.cuda.init()
        return torch.cuda.default_generators[device.index or 0]
    return torch.default_generator


def _has_key(module: nn.Module) -> bool:
    # What is compiled draws as a whole; what draws nothing must not change the key for what comes after it.
    return draws(module) or (is_compiled(module) and any(map(draws, module.modules())))


def draws(module: nn.Module) -> bool:
    """Whether this module by itself may draw random numbers while training.

    >>> draws(nn.Dropout(0.1)), draws(nn.Dropout(0.0)), draws(nn.Linear(1, 1))
    (True, False, False)
    """
    if type(module).__module__.startswith("torch.nn"):
        if isinstance(module, nn.RReLU):
            return True
        # Dropout modules hold `p`; attention and recurrent modules hold `dropout`; containers hold neither.
        probability = getattr(module, "p", getattr(module, "dropout", 0.0))
        return isinstance(probability, float | int) and probability > 0
    # A module of the user's: a word in its source is enough. A needless key costs microseconds; a missing one is
    # still exact in one process, since the microbatch's own key stands.
    try:
        return bool(DRAWING_WORDS.search(inspect.getsource(type(module).forward)))
    except (OSError, TypeError):
        return True
