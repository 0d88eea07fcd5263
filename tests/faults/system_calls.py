"""A function run in a forked process that is killed, or told that the disk is full, at its n-th system call that
changes a folder. Through ptrace, so that what C and Rust libraries write is met as well; nothing has to be preloaded.

`before` kills before the call does anything, `after` kills when it is done, `during` leaves the first half of what a
write was to change, and `full` answers the call with ENOSPC instead of making it; the disk stays full from there on.
"""

import ctypes
import dataclasses
import errno
import os
import platform
import signal
import struct
from collections.abc import Callable
from pathlib import Path

NUMBERS = {
    "x86_64": {
        1: "write",
        18: "pwrite",
        74: "fsync",
        75: "fdatasync",
        77: "ftruncate",
        82: "rename",
        83: "mkdir",
        84: "rmdir",
        86: "link",
        87: "unlink",
        257: "open",
        258: "mkdir",
        263: "unlink",
        264: "rename",
        265: "link",
        285: "fallocate",
        316: "rename",
    },
    "aarch64": {
        34: "mkdir",
        35: "unlink",
        37: "link",
        38: "rename",
        46: "ftruncate",
        47: "fallocate",
        56: "open",
        64: "write",
        68: "pwrite",
        82: "fsync",
        83: "fdatasync",
        276: "rename",
    },
}.get(platform.machine(), {})

_TRACEME, _SYSCALL, _GETREGSET, _SETREGSET, _SETOPTIONS, _INFO = 0, 24, 0x4204, 0x4205, 0x4200, 0x420E
_EXITKILL, _TRACESYSGOOD = 1 << 20, 1
_ENTRY, _EXIT = 1, 2
# What needs room. A full disk still lets files be removed, renamed and synced.
_GROWING = ("write", "pwrite", "open", "mkdir", "fallocate")
_PRSTATUS, _ARM_SYSTEM_CALL = 1, 0x404

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


@dataclasses.dataclass(frozen=True)
class Ended:
    """The calls that a function made, by name, and how it ended: `done`, `killed`, or what it raised."""

    calls: tuple[str, ...]
    how: str
    said: str = ""


def ptrace_works() -> bool:
    """Whether this machine lets a process trace its child, and its calls are known here."""
    if not NUMBERS:
        return False
    try:
        return traced(lambda: None, Path("/")).how == "done"
    except OSError:
        return False


def traced(function: Callable[[], object], folder: Path, *, at: int | None = None, mode: str = "before") -> Ended:
    """Run `function` in a child; at its call number `at` on files under `folder`, do what `mode` says."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _be_traced(function, writer)
    os.close(writer)
    try:
        calls, killed = _follow(child, folder.resolve(), at, mode)
        with open(reader, "rb", closefd=False) as file:
            how, _, said = file.read().decode().partition("\n")
    finally:
        os.close(reader)
    return Ended(tuple(calls), "killed" if killed else how, said)


def _be_traced(function: Callable[[], object], writer: int) -> None:
    try:
        _ptrace(_TRACEME, 0)
        os.kill(os.getpid(), signal.SIGSTOP)
        try:
            function()
            said = "done\n"
        except Exception as error:
            said = f"{type(error).__name__}\n{error}"
        os.write(writer, said.encode()[:60000])
    finally:
        os._exit(0)


def _follow(child: int, folder: Path, at: int | None, mode: str) -> tuple[list[str], bool]:
    calls: list[str] = []
    os.waitpid(child, 0)
    _ptrace(_SETOPTIONS, child, data=_EXITKILL | _TRACESYSGOOD)
    struck: _Write | None = None
    answering = False
    while True:
        _ptrace(_SYSCALL, child)
        _, status = os.waitpid(child, 0)
        if not os.WIFSTOPPED(status):
            return calls, False
        info = ctypes.create_string_buffer(88)
        _libc.ptrace(_INFO, child, 88, ctypes.addressof(info))
        if info.raw[0] == _EXIT and (struck or answering):
            if struck:
                struck.tear()
                return calls, _kill(child)
            answering = False
            _answer(child, -errno.ENOSPC)
        if info.raw[0] != _ENTRY:
            continue
        number, *arguments = struct.unpack_from("<7Q", info.raw, 24)
        name = _concerned(child, NUMBERS.get(number, ""), arguments, folder)
        if not name:
            continue
        calls.append(name)
        here, past = len(calls) - 1 == at, at is not None and len(calls) - 1 > at
        if mode == "full" and (here or (past and name in _GROWING)):
            answering = True
            _skip(child)
        if not here or mode == "full":
            continue
        if mode == "before":
            return calls, _kill(child)
        struck = _Write(child, name, arguments, torn=mode == "during")


class _Write:
    """A call that is under way: what its file held before, so that half of it can be put back."""

    def __init__(self, child: int, name: str, arguments: list[int], *, torn: bool) -> None:
        self._torn = torn and name in ("write", "pwrite")
        if not self._torn:
            return
        number, self._count = arguments[0], arguments[2]
        self._file = os.open(f"/proc/{child}/fd/{number}", os.O_RDWR)
        position = Path(f"/proc/{child}/fdinfo/{number}").read_text().split()[1]
        self._offset = arguments[3] if name == "pwrite" else int(position)
        self._size = os.fstat(self._file).st_size
        self._before = os.pread(self._file, self._count, self._offset)

    def tear(self) -> None:
        """Put back the second half of what was there."""
        if self._torn:
            half = self._count // 2
            os.pwrite(self._file, self._before[half:], self._offset + half)
            os.ftruncate(self._file, max(self._size, self._offset + half))
            os.close(self._file)


def _concerned(child: int, name: str, arguments: list[int], folder: Path) -> str:
    """The call's name if it changes something in the folder; calls by path are taken to."""
    if name == "open":
        return name if arguments[2] & os.O_CREAT else ""
    if name in ("write", "pwrite", "fsync", "fdatasync", "ftruncate", "fallocate"):
        try:
            target = os.readlink(f"/proc/{child}/fd/{arguments[0]}")
        except OSError:
            return ""
        return name if target.startswith(str(folder)) else ""
    return name


def _kill(child: int) -> bool:
    os.kill(child, signal.SIGKILL)
    while not os.WIFSIGNALED(os.waitpid(child, 0)[1]):
        pass
    return True


def _skip(child: int) -> None:
    if platform.machine() == "aarch64":
        _set(child, _ARM_SYSTEM_CALL, struct.pack("<i", -1))
    else:
        registers = _registers(child)
        registers[15] = 2**64 - 1  # orig_rax
        _set(child, _PRSTATUS, struct.pack(f"<{len(registers)}Q", *registers))


def _answer(child: int, value: int) -> None:
    registers = _registers(child)
    registers[0 if platform.machine() == "aarch64" else 10] = value % 2**64  # x0, or rax
    _set(child, _PRSTATUS, struct.pack(f"<{len(registers)}Q", *registers))


def _registers(child: int) -> list[int]:
    space = ctypes.create_string_buffer(512)
    vector = (ctypes.c_size_t * 2)(ctypes.addressof(space), 512)
    _ptrace(_GETREGSET, child, address=_PRSTATUS, data=ctypes.addressof(vector))
    return list(struct.unpack_from(f"<{vector[1] // 8}Q", space.raw))


def _set(child: int, which: int, content: bytes) -> None:
    space = ctypes.create_string_buffer(content, len(content))
    vector = (ctypes.c_size_t * 2)(ctypes.addressof(space), len(content))
    _ptrace(_SETREGSET, child, address=which, data=ctypes.addressof(vector))


def _ptrace(request: int, process: int, *, address: int = 0, data: int = 0) -> None:
    if _libc.ptrace(request, process, address, data) == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"ptrace {request}: {os.strerror(number)}")
