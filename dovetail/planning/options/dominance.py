"""Which options no planner would choose, since another is at least as good in everything. Knows no cluster."""

from dovetail.vocabulary import Option


def undominated(options: list[Option]) -> list[Option]:
    """Options that no other one of the same families on the same kind beats or equals in everything; what is only
    predicted beats nothing that was measured.

    Which of two good options is better depends on the other tasks, so only a planner may choose there.
    """
    kept: list[Option] = []
    # In this order an option comes after every one that could dominate it, and of equals the first stays: `sorted` is
    # stable, and what was measured comes before what was predicted.
    for option in sorted(options, key=_taken):
        if not any(_dominates(other, option) for other in kept):
            kept.append(option)
    return [option for option in options if any(option is other for other in kept)]


def _taken(option: Option) -> tuple[float, ...]:
    memory = (option.device_bytes, option.host_bytes, option.disk_bytes)
    return (option.count, option.start_seconds, *option.step_seconds, *memory, option.cores)


def _dominates(better: Option, worse: Option) -> bool:
    if (better.families, better.kind) != (worse.families, worse.kind) or worse.measured > better.measured:
        return False
    return all(low <= high for low, high in zip(_taken(better), _taken(worse), strict=True))
