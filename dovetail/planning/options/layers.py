"""Whose layers are known well enough to predict what was not measured from them."""

from collections.abc import Iterable

from dovetail.vocabulary import Profile


def with_layers(profiles: Iterable[Profile]) -> list[Profile]:
    """One profile a family that says what each of its layers takes: the resident one where there are two."""
    found: dict[str, Profile] = {}
    for profile in profiles:
        is_timed = any(layer.forward_seconds + layer.backward_seconds > 0 for layer in profile.layers)
        is_sized = any(layer.parameter_bytes for layer in profile.layers)
        is_better = profile.technique == "resident" or profile.family not in found
        if is_timed and is_sized and is_better:
            found[profile.family] = profile
    return list(found.values())
