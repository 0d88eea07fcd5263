"""What calls would take on a kind that nobody measured them on, from what they took on one that somebody did.

The model, as in `roofline.py`: a call reads its parameters at the memory's rate, computes its rows at
the matrix rate, and takes the longer of the two; what is left of a call of one row is the host's, and stays.
"""

from dovetail.planning.options.kinds import SHEETS
from dovetail.planning.serving.latency import LatencyCurve
from dovetail.vocabulary import DovetailError, Kind


def predict_latency(curve: LatencyCurve, *, parameter_bytes: int, source: Kind, target: Kind) -> LatencyCurve:
    """The latencies on the target kind of a model whose latencies on the source kind were measured.

    >>> cpu = Kind(name="cpu", processor="cpu", matrix_flops_per_second=5e10, memory_bytes_per_second=1e10)
    >>> t4 = Kind(name="t4", processor="cuda", matrix_flops_per_second=65e12, memory_bytes_per_second=3.2e11)
    >>> measured = LatencyCurve(((1, 0.012), (32, 0.112)))
    >>> found = predict_latency(measured, parameter_bytes=100_000_000, source=cpu, target=t4)
    >>> round(found.seconds(1), 5), round(found.seconds(32), 5)
    (0.00231, 0.00268)
    """
    if source.name == target.name:
        return curve
    for kind in (source, target):
        if not (kind.matrix_flops_per_second > 0 and kind.memory_bytes_per_second > 0):
            raise DovetailError(
                f"a kind must have its matrix and memory rates to predict from or for it; {kind.name!r} has not. "
                "Run 'dovetail cluster --measure'."
            )
    ratio = _single_rate(source) / _single_rate(target)
    reading = parameter_bytes / target.memory_bytes_per_second
    host = max(0.0, curve.points[0][1] - parameter_bytes / source.memory_bytes_per_second)
    points = tuple((rows, host + max(reading, (seconds - host) * ratio)) for rows, seconds in curve.points)
    return LatencyCurve(points, curve.spread)


def _single_rate(kind: Kind) -> float:
    """Models answer in single precision; of accelerators the rate in half precision is known."""
    sheet = SHEETS.get(kind.name)
    return kind.matrix_flops_per_second * (sheet.single_flops / sheet.half_flops if sheet else 1.0)
