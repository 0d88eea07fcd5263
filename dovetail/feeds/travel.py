"""Which parts of a feed can travel to another process, and those parts as bytes.

What lies in modules that cannot be imported by their name there, such as a user's file that was loaded by its path, is
pickled by value.
"""

import contextlib
import copy
import dataclasses
import importlib.machinery
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

import cloudpickle

from dovetail.feeds.sources import ItemSource
from dovetail.feeds.stage_chain import StageChain
from dovetail.feeds.transport import decode


def pack(chain: StageChain) -> tuple[bytes, list[str]]:
    """A chain as bytes, with those of its stages left out that cannot travel; and for each stage why it cannot, or
    nothing.

    >>> from dovetail.feeds.definition import feed
    >>> import threading
    >>> lock = threading.Lock()
    >>> _, reasons = pack(StageChain(feed([1]).map(lambda x: x).map(lambda x: lock and x)))
    >>> [bool(reason) for reason in reasons]
    [False, False, True]
    """
    modules = list(_unimportable())
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        if not isinstance(chain.source, ItemSource):  # a stream is read where the feed is asked for
            chain = copy.copy(chain)
            chain.source = None  # type: ignore[assignment]
        classes = [each for each in _classes_of([*modules, sys.modules["__main__"]]) if not _why_not(each)]
        with contextlib.suppress(Exception):
            return cloudpickle.dumps((classes, chain)), [""] * len(chain.stages)
        reasons = [_why_not(chain.source), *(_why_not(stage.function) for stage in chain.stages[1:])]
        stripped = copy.copy(chain)
        stripped.source = None if reasons[0] else chain.source  # type: ignore[assignment]
        stripped.stages = tuple(
            dataclasses.replace(stage, function=None) if reason else stage
            for stage, reason in zip(chain.stages, reasons, strict=True)
        )
        return cloudpickle.dumps((classes, stripped)), reasons
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def unpack(packed: bytes) -> StageChain:
    """The chain that was packed. Classes of the program's own, of which items may be made, are from then on found by
    their names, so that items travel by these."""
    classes, chain = decode(packed, ())
    for each in classes:
        module = sys.modules.setdefault(each.__module__, types.ModuleType(each.__module__))
        if not hasattr(module, each.__name__):
            setattr(module, each.__name__, each)
    assert isinstance(chain, StageChain)
    return chain


def _classes_of(modules: Iterable[types.ModuleType]) -> Iterator[type]:
    """The classes that modules define at their top."""
    for module in modules:
        for name, value in list(vars(module).items()):
            is_own = isinstance(value, type) and value.__module__ == module.__name__ and value.__qualname__ == name
            if is_own and sys.modules.get(module.__name__) is module:
                yield value


def _why_not(value: Any) -> str:
    try:
        cloudpickle.dumps(value)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _unimportable() -> Iterator[types.ModuleType]:
    """The modules of this process that others would not find by their names."""
    installed = (sys.prefix, sys.base_prefix)
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name == "__main__" or not isinstance(file, str) or file.startswith(installed) or not file.endswith(".py"):
            continue
        top = name.partition(".")[0]
        if importlib.machinery.PathFinder.find_spec(top) is None and isinstance(module, types.ModuleType):
            yield module
