"""Libraries of generated C, kept on disk by what they were made of, so that the next process need not compile.

A name is the digest of source, flags, compiler and processor: what another machine left on a shared disk is never
loaded. The folder must belong to this user and be closed to others, since a library is code. Files appear by renaming,
so that two processes that compile the same do no harm to each other.
"""

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

_COMPILE_SECONDS = 60.0


def cached_library(source: str, flags: tuple[str, ...] = (), *, folder: Path | None = None) -> ctypes.CDLL | None:
    """The library of this C source, from disk or compiled now; None where that cannot be done.

    >>> library = cached_library("int seven(void) { return 7; }")
    >>> library is None or library.seven()
    7
    """
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    folder = _private_folder() if folder is None else folder
    name = hashlib.sha256("\0".join((source, *flags, compiler, _processor())).encode()).hexdigest()[:32]
    kept = folder / f"{name}.so" if folder else None
    if kept is not None and kept.exists():
        with contextlib.suppress(OSError):  # cut short by a full disk, say: compiled again
            return ctypes.CDLL(str(kept))
    return _compile(compiler, source, flags, kept)


def _compile(compiler: str, source: str, flags: tuple[str, ...], kept: Path | None) -> ctypes.CDLL | None:
    with tempfile.TemporaryDirectory() as scratch:
        text, made = Path(scratch) / "source.c", Path(scratch) / "library.so"
        text.write_text(source)
        command = [compiler, "-O3", "-march=native", "-shared", "-fPIC", *flags, "-o", str(made), str(text), "-lm"]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=_COMPILE_SECONDS, stdin=subprocess.DEVNULL)
            library = ctypes.CDLL(str(made))  # outlives its file
        except (OSError, subprocess.SubprocessError):
            return None
        if kept is not None:
            with contextlib.suppress(OSError):  # a disk that is full or cannot be written: this process has its library
                beside = kept.with_suffix(f".{os.getpid()}")
                shutil.copyfile(made, beside)
                beside.replace(kept)
        return library


def _private_folder() -> Path | None:
    """Where libraries are kept, or None where nothing can be kept safely."""
    base = os.environ.get("DOVETAIL_CACHE") or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "dovetail" / "libraries"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError:
        return None
    return folder if found.st_uid == os.getuid() and not stat.S_IMODE(found.st_mode) & 0o022 else None


@functools.cache
def _processor() -> str:
    """What `-march=native` compiles for on this machine: a library made for it may not run on another."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        wanted = ("model name", "flags", "Features", "CPU implementer", "CPU part")
        return "\n".join(sorted({line for line in lines if line.startswith(wanted)}))
    return platform.processor() or platform.machine()
