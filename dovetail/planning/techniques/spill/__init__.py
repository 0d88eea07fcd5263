"""What a spilled model takes: which of its segments stay on the device, where the others live, what that takes in bytes
and, with the simulation of `planning/streaming`, in seconds. A spilled model is a gang of one.

`layouts` decides for any segments within budgets, `cutting` makes segments of a profile's layers, `room` says how fast
things move on a device's node, `offers` makes options of all that.
"""

from dovetail.planning.streaming import Layout, Pace, Segment, Spilled, StreamingRates, step_seconds
from dovetail.planning.techniques.spill.layouts import DoesNotFit, SpillRoom, cut, layout, segments, working_bytes
from dovetail.planning.techniques.spill.offers import (
    KNOBS,
    SPEC,
    accelerators,
    budgets_of,
    fastest,
    is_resident,
    option,
    predict,
    slowed,
    with_its_cores,
)

__all__ = [
    "KNOBS",
    "SPEC",
    "DoesNotFit",
    "Layout",
    "Pace",
    "Segment",
    "SpillRoom",
    "Spilled",
    "StreamingRates",
    "accelerators",
    "budgets_of",
    "cut",
    "fastest",
    "is_resident",
    "layout",
    "option",
    "predict",
    "segments",
    "slowed",
    "step_seconds",
    "with_its_cores",
    "working_bytes",
]
