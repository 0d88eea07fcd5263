"""Which versions are installed, found without importing them: what was measured under others is not used."""

import functools
import importlib.metadata
import platform


@functools.cache
def versions() -> str:
    """The versions that decide how fast a program runs.

    >>> "python" in versions()
    True
    """
    found = [f"python {platform.python_version()}"]
    for name in ("torch", "numpy", "transformers"):
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return ", ".join(found)
