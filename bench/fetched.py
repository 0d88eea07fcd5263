"""Packages that a bench compares with and that Dovetail does not need."""

import contextlib
import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Iterator


@contextlib.contextmanager
def fetched(*packages: str) -> Iterator[None]:
    """Within, packages can be imported, without what they need themselves: from a folder of their own if they are not
    installed, and not at all where they cannot be had."""
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    with tempfile.TemporaryDirectory() as folder:
        if missing:
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder, *missing]
            done = subprocess.run(command, capture_output=True, text=True)
            print(done.stderr[-300:] if done.returncode else f"{', '.join(missing)}: in a folder of their own")
            sys.path.append(folder)
        yield
