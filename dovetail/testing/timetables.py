"""What the bubble of a timetable must be, in closed form, where all stages take the same time and messages none.

Backward takes `ratio` times as long as forward. Shares are of the makespan of one step; a timetable that never flushes
has no bubble once it runs.
"""

from dovetail.vocabulary import InvalidRecord


def bubble_share(name: str, *, depth: int, microbatches: int, chunks: int = 1, ratio: float = 2.0) -> float:
    """The share of time that ranks are idle: with p ranks and m microbatches

    - GPipe and 1F1B: (p − 1) / (m + p − 1);
    - interleaved with v chunks a rank: (p − 1) / (v·m + p − 1);
    - ZB-H1, for m ≥ p and backward in two equal parts, neither longer than forward: (p − 1) / (m(1 + ratio) + p − 1);
    - stashing, vertical sync and 2BW: 0.

    >>> [round(bubble_share(name, depth=8, microbatches=16), 3) for name in ("1f1b", "zero_bubble", "2bw")]
    [0.304, 0.127, 0.0]
    >>> round(bubble_share("interleaved", depth=8, microbatches=16, chunks=4), 3)
    0.099
    """
    fill = depth - 1
    if name in ("gpipe", "1f1b"):
        return fill / (microbatches + fill)
    if name == "interleaved":
        return fill / (chunks * microbatches + fill)
    if name == "zero_bubble" and microbatches >= depth and ratio <= 2:
        return fill / (microbatches * (1 + ratio) + fill)
    if name in ("stashing", "vertical_sync", "2bw"):
        return 0.0
    raise InvalidRecord(
        f"there is no closed form for {name!r} with {microbatches} microbatches at depth {depth}, ratio {ratio}."
    )
