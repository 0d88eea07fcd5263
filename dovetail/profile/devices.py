"""What a node can do, measured on it: how fast a kind of device multiplies matrices and moves memory, how fast bytes
move between a host, its devices and its processes, and how fast the host updates parameters with AdamW.

On a CPU one device is one core, so one thread is measured, in single precision; on CUDA bfloat16, which is what matrix
units are for. The second process of a link is a bare interpreter at the other end of a socket, as a rank of a placement
would be, started anew rather than forked: a forked copy of a process that uses CUDA is broken. Updates, the wall of
spilled training, are measured with the very code that spilling uses: its own kernel on all cores where there is a
compiler, torch's fused update where there is none. Knows one node; knows nothing of models.
"""

import contextlib
import dataclasses
import functools
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import torch

from dovetail.profile.clocks import clock_for, synchronize
from dovetail.train.spill import adamw_kernel as kernel
from dovetail.vocabulary import Kind, Link

_BUDGET_SECONDS = 0.4  # for each of the two rates
_LONG_ENOUGH_SECONDS = 2e-3  # a product this long hides what launching it takes
_CPU_COPY_BYTES = 64 << 20  # beyond any core's share of cache
_CUDA_COPY_BYTES = 512 << 20  # likewise


def measure_kind(kind: Kind, *, device: torch.device) -> Kind:
    """The kind with its rates measured on `device`, in about a second.

    >>> measured = measure_kind(Kind(name="cpu", processor="cpu"), device=torch.device("cpu"))
    >>> measured.matrix_flops_per_second > 0, measured.memory_bytes_per_second > 0
    (True, True)
    """
    if kind.processor != device.type:
        raise ValueError(f"device must be of the kind's processor {kind.processor!r}, got {str(device)!r}.")
    with _one_thread(device):
        return dataclasses.replace(
            kind,
            matrix_flops_per_second=_matrix_flops_per_second(device),
            memory_bytes_per_second=_memory_bytes_per_second(device),
        )


def median_seconds(action: Callable[[], object], *, device: torch.device, budget_seconds: float) -> float:
    """The median time of an action on a device, repeated at least thrice and until the budget is spent.

    >>> median_seconds(lambda: None, device=torch.device("cpu"), budget_seconds=0.0) >= 0
    True
    """
    action()
    timed: list[float] = []
    begin = time.perf_counter()
    while len(timed) < 3 or time.perf_counter() - begin < budget_seconds:
        timed.append(_seconds(action, device))
    return max(statistics.median(timed), 1e-9)  # a clock's tick, so that rates stay finite


def _seconds(action: Callable[[], object], device: torch.device) -> float:
    clock = clock_for(device)
    synchronize(device)
    start = clock.mark()
    action()
    return clock.seconds(start, clock.mark())


@contextlib.contextmanager
def _one_thread(device: torch.device) -> Iterator[None]:
    before = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _matrix_flops_per_second(device: torch.device) -> float:
    size, most = (512, 1024) if device.type == "cpu" else (1024, 8192)
    while size < most and _product_seconds(size, device, budget_seconds=0.0) < _LONG_ENOUGH_SECONDS:
        size *= 2
    return 2.0 * size**3 / _product_seconds(size, device, budget_seconds=_BUDGET_SECONDS)


def _product_seconds(size: int, device: torch.device, *, budget_seconds: float) -> float:
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    # Random values: zeros draw less power, so a device runs them faster than it runs training.
    generator = torch.Generator(device).manual_seed(0)
    left, right = (torch.randn(size, size, generator=generator, device=device, dtype=dtype) for _ in range(2))
    out = torch.empty_like(left)
    return median_seconds(lambda: torch.mm(left, right, out=out), device=device, budget_seconds=budget_seconds)


def _memory_bytes_per_second(device: torch.device) -> float:
    size = _CPU_COPY_BYTES
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        size = min(_CUDA_COPY_BYTES, free // 8)
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = median_seconds(lambda: target.copy_(source), device=device, budget_seconds=_BUDGET_SECONDS)
    return 2.0 * size / seconds  # read and written


_LINK_SECONDS = 0.2
_TRANSFER_BYTES = 64 << 20
_MESSAGE_BYTES = 16 << 20
_PATIENCE_SECONDS = 30.0
# Answers one byte to every message, whose length comes first. It ends when the other end is closed.
_CHILD = """
import socket, sys
end = socket.socket(fileno=int(sys.argv[1]))
room = memoryview(bytearray(1 << 20))
while head := end.recv(8, socket.MSG_WAITALL):
    left = int.from_bytes(head, "little")
    while left:
        left -= end.recv_into(room, min(left, len(room))) or sys.exit(1)
    end.sendall(b"!")
"""


def measure_links(kind: Kind, *, device: torch.device) -> tuple[Link, ...]:
    """The links of one node: between processes, and on CUDA between the host's pinned memory and the device.

    >>> [(link.source, link.target) for link in measure_links(Kind(name="cpu", processor="cpu"),
    ...                                                       device=torch.device("cpu"))]
    [('process', 'process')]
    """
    if kind.processor != device.type:
        raise ValueError(f"device must be of the kind's processor {kind.processor!r}, got {str(device)!r}.")
    copies = _device_links(kind, device) if device.type == "cuda" else ()
    return (*copies, _process_link())


def _device_links(kind: Kind, device: torch.device) -> tuple[Link, ...]:
    small, large = _ends(1, device), _ends(_TRANSFER_BYTES, device)

    def link(source: str, target: str, *, to_device: bool) -> Link:
        latency = _copy_seconds(*small, device, to_device=to_device)
        seconds = _copy_seconds(*large, device, to_device=to_device)
        rate = _TRANSFER_BYTES / seconds
        return Link(source=source, target=target, bytes_per_second=rate, latency_seconds=latency)

    return link("host", kind.name, to_device=True), link(kind.name, "host", to_device=False)


def _ends(size: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    host = torch.ones(size, dtype=torch.uint8).pin_memory()
    return host, torch.empty(size, dtype=torch.uint8, device=device)


def _copy_seconds(host: torch.Tensor, other: torch.Tensor, device: torch.device, *, to_device: bool) -> float:
    source, target = (host, other) if to_device else (other, host)
    return median_seconds(lambda: target.copy_(source, non_blocking=True), device=device, budget_seconds=_LINK_SECONDS)


def _process_link() -> Link:
    with _other_process() as end:
        latency = _exchange_seconds(end, 1) / 2  # there and back
        whole = _exchange_seconds(end, _MESSAGE_BYTES)
    rate = _MESSAGE_BYTES / max(whole - 2 * latency, 1e-9)
    return Link(source="process", target="process", bytes_per_second=rate, latency_seconds=latency)


@contextlib.contextmanager
def _other_process() -> Iterator[socket.socket]:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            # -I -S: neither the user's paths nor installed packages; it starts in milliseconds.
            command = [sys.executable, "-I", "-S", "-c", _CHILD, str(theirs.fileno())]
            child = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        ours.settimeout(_PATIENCE_SECONDS)
        try:
            yield ours
        finally:
            ours.close()
            _end(child)


def _end(child: "subprocess.Popen[bytes]") -> None:
    try:
        child.wait(timeout=_PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _exchange_seconds(end: socket.socket, size: int) -> float:
    message = bytes(size)

    def exchange() -> None:
        end.sendall(size.to_bytes(8, "little"))
        end.sendall(message)
        if end.recv(1) != b"!":
            raise ConnectionError("the other process must answer every message; it ended instead.")

    return median_seconds(exchange, device=torch.device("cpu"), budget_seconds=_LINK_SECONDS)


# Beyond any cache: 28 bytes each.
_PARAMETERS = 1 << 25
_UPDATE_SECONDS = 0.5


def measure_updates(*, threads: int) -> float:
    """How many parameters a second this host updates.

    >>> measure_updates(threads=1) > 1e6
    True
    """
    master, gradient = torch.zeros(_PARAMETERS), torch.ones(_PARAMETERS, dtype=torch.bfloat16)
    travel = torch.zeros_like(gradient)
    with contextlib.ExitStack() as stack:
        update = _step_with_torch
        if kernel.load() is not None:
            pool = kernel.ThreadPool(threads)
            stack.callback(pool.close)
            update = functools.partial(_step_with_kernel, pool)
        slots: dict[str, torch.Tensor] = {}
        update(master, slots, gradient, travel)  # touches all memory once
        began, count = time.perf_counter(), 0
        while time.perf_counter() - began < _UPDATE_SECONDS:
            update(master, slots, gradient, travel)
            count += 1
        return count * _PARAMETERS / (time.perf_counter() - began)


_OPTIONS = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
_Slots = dict[str, torch.Tensor]


def _step_with_kernel(
    pool: kernel.ThreadPool, master: torch.Tensor, slots: _Slots, gradient: torch.Tensor, travel: torch.Tensor
) -> None:
    one = kernel.stretch(master, slots, gradient=gradient, travel=travel, options=_OPTIONS, decoupled=True, scale=1.0)
    pool.update([one])


def _step_with_torch(master: torch.Tensor, slots: _Slots, gradient: torch.Tensor, travel: torch.Tensor) -> None:
    if not slots:
        slots |= {name: torch.zeros_like(master) for name in ("exp_avg", "exp_avg_sq")}
    parameter = torch.nn.Parameter(master)
    parameter.grad = gradient.float()
    optimizer = torch.optim.AdamW([parameter], fused=True)
    optimizer.state[parameter] = {"step": torch.zeros(()), **slots}
    optimizer.step()
    travel.copy_(master)
