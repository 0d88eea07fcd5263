"""Compile a C file and load what comes of it. Where there is no compiler, callers do without."""

import ctypes
import functools
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

_COMPILE_SECONDS = 60
WIDEST_VECTORS = ("-mprefer-vector-width=512",) if platform.machine() == "x86_64" else ()
"""Of loops that do nothing but compute: compilers prefer half of the widest vectors, which is right for programs that
use few."""


@functools.cache
def load_library(source: Path, flags: tuple[str, ...] = ()) -> ctypes.CDLL | None:
    """The library of one C file, compiled at its first use in a process; None where that cannot be done.

    It is compiled for this processor and kept nowhere: a library on a disk that machines share could have been made
    for another processor, or by another user.

    >>> load_library(Path("there is no such file.c")) is None
    True
    """
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory() as folder:  # a loaded library outlives its file
        path = Path(folder) / f"{source.stem}.so"
        command = [compiler, "-O3", "-march=native", "-shared", "-fPIC", *flags, "-o", str(path), str(source), "-lm"]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=_COMPILE_SECONDS)
            return ctypes.CDLL(str(path))
        except (OSError, subprocess.SubprocessError):
            return None
