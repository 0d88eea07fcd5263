"""The packages whose trainers are adapted: imported when they are used, named where they are missing or too old."""

import importlib
import importlib.metadata
import re
import types

from dovetail.vocabulary import DovetailError


def require(package: str, *, extra: str, least: str) -> types.ModuleType:
    """The package, of version `least` or newer, which `pip install 'dovetail[extra]'` brings.

    >>> require("torch", extra="lightning", least="2.0").__name__
    'torch'
    >>> require("torch", extra="lightning", least="99.0")
    Traceback (most recent call last):
    ...
    dovetail.vocabulary.errors.DovetailError: torch must be of version 99.0 or newer; found ...
    """
    try:
        module = importlib.import_module(package)
    except ImportError as error:
        if (error.name or "").partition(".")[0] != package.partition(".")[0]:
            raise
        raise DovetailError(
            f"this must have the package {package}; it is not installed. Install it: pip install 'dovetail[{extra}]'."
        ) from error
    found = getattr(module, "__version__", None) or importlib.metadata.version(package)
    if _numbers(found) < _numbers(least):
        raise DovetailError(
            f"{package} must be of version {least} or newer; found {found}. "
            f"Install it: pip install 'dovetail[{extra}]' '{package}>={least}'."
        )
    return module


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version.partition("+")[0])[:3]]
