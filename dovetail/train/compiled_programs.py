"""What a program has compiled by itself, and which techniques cannot follow it there."""

import inspect
import re
from typing import Any

from torch import nn

from dovetail.train.postponed_compiler import is_compiled
from dovetail.train.randomness import DRAWING_WORDS, draws
from dovetail.train.undeclared import reached_by

# A dropout of a rate that stands in the call.
_RATE_IN_CALL = re.compile(r"drop\w*\([^()]*(?<![\w.])0?\.\d*[1-9]", re.IGNORECASE)


def runs_compiled(function: Any) -> bool:
    """Whether a loss or an evaluation is compiled, or calls what is: a model that it holds compiled, or a helper.

    >>> runs_compiled(lambda model, batch: model(batch).mean())
    False
    """
    return is_compiled(function) or any(is_compiled(value) for _, value in reached_by(function))


def refuse_compiled_draws(model: nn.Module, loss: Any, *, name: str) -> str | None:
    """Why a technique that must see each draw cannot train this model with this loss: the program has compiled what
    draws, so that it happens in the compiler's own order.

    >>> refuse_compiled_draws(nn.Dropout(0.1), None, name="shard") is None
    True
    """
    outer = {path: module for path, module in model.named_modules() if is_compiled(module)}
    outer |= {"": model} if runs_compiled(loss) else {}
    for path, module in outer.items():
        inside = (".".join(filter(None, (path, own))) for own, each in module.named_modules() if _drops(each))
        if (found := next(inside, None)) is not None:
            return (
                f"what draws (dropout and the like) must run as Python for {name}; {found or 'the model'!r} is "
                f"compiled. Compile what lies around it, or nothing"
            )
    return None


def _drops(module: nn.Module) -> bool:
    """Whether it draws, by more than words in its source: attention whose dropout is 0 does not."""
    if not draws(module) or type(module).__module__.startswith("torch.nn"):
        return draws(module)
    try:
        source = inspect.getsource(type(module).forward)
    except (OSError, TypeError):
        return True
    rates = [value for name, value in (vars(module) | module._modules).items() if "drop" in name.lower()]
    is_other = {word.lower() for word in DRAWING_WORDS.findall(source)} != {"drop"} or _RATE_IN_CALL.search(source)
    return bool(is_other or not rates or any(map(_is_positive, rates)))


def _is_positive(rate: Any) -> bool:
    if isinstance(rate, nn.Module):
        return any(map(draws, rate.modules()))
    return rate > 0 if isinstance(rate, int | float) else rate is not None
