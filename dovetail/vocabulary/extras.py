"""Packages that some commands need, and which extra of Dovetail brings them."""

import importlib.util

from dovetail.vocabulary.errors import DovetailError


def check_installed(what: str, *packages: str, extra: str) -> None:
    """Raise `DovetailError` where a package that `what` needs is not installed; nothing is imported.

    >>> check_installed("a page", "json", "nosuch", extra="ui")
    Traceback (most recent call last):
    ...
    dovetail.vocabulary.errors.DovetailError: a page must have nosuch installed: pip install 'dovetail[ui]'.
    """
    if missing := [name for name in packages if importlib.util.find_spec(name) is None]:
        raise DovetailError(f"{what} must have {' and '.join(missing)} installed: pip install 'dovetail[{extra}]'.")
