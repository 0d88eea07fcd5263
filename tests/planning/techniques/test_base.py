"""Descriptors: what they say agrees with what runs, and what a family's trials and gangs are made from."""

import dataclasses
import itertools
from importlib import metadata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.planning import TECHNIQUES, TechniqueSpec, Trial, spec_of, trial_of
from dovetail.planning.techniques import GROUP, techniques
from dovetail.planning.techniques.base import Evidence, gang_sizes
from dovetail.train import load_technique
from dovetail.vocabulary import Cluster, DovetailError, Kind, Profile, Rejection

H200 = Kind(name="h200", processor="cuda", memory_bytes=10)


@pytest.mark.parametrize("spec", TECHNIQUES.values(), ids=TECHNIQUES.keys())
def test_a_descriptor_agrees_with_its_runtime(spec: TechniqueSpec) -> None:
    technique = load_technique(spec.name)
    assert (technique.name, technique.ranked) == (spec.name, spec.ranked)
    assert technique.exactness.startswith("equal to resident up to the order of") == spec.rounds({})


def test_rows_in_parts_round_and_recomputing_does_not() -> None:
    rounds = TECHNIQUES["resident"].rounds
    assert (rounds({"microbatches": 2}), rounds({"recompute": True})) == (True, False)


def test_a_technique_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(DovetailError, match=r"one of \['beside', .*got 'waltz'"):
        spec_of("waltz")


def test_nothing_else_is_installed_here() -> None:
    assert techniques() == TECHNIQUES


@given(st.integers(1, 500), st.integers(2, 64))
def test_gangs_have_all_small_sizes_and_divide_the_tasks_evenly(members: int, most: int) -> None:
    sizes = list(gang_sizes(members, most=most))
    assert sizes == sorted(set(sizes))
    assert len(sizes) <= 14
    assert all(2 <= size <= min(members, most) for size in sizes)
    assert {*range(2, min(members, most, 8) + 1)} <= set(sizes)
    assert min(members, most) < 2 or -(-members // 1) in sizes or members > most


def test_a_trial_is_told_apart_by_the_knobs_that_its_technique_says() -> None:
    plain = Profile(family="f", kind="h200", count=1, step_seconds=1, peak_bytes=0)
    fused = dataclasses.replace(plain, technique="fuse", knobs={"members": 4})
    lower = dataclasses.replace(plain, knobs={"microbatches": 2})
    refused = Rejection(
        families=("f",) * 4, technique="fuse", kind="h200", count=1, reason="no", knobs={"members": 4, "other": 1}
    )
    assert (
        trial_of(fused)
        == trial_of(refused)
        == Trial(family="f", technique="fuse", kind="h200", count=1, knobs={"members": 4})
    )
    assert trial_of(lower) == Trial(family="f", technique="resident", kind="h200", count=1)


def test_too_large_is_what_failed_took_too_much_or_stands_on_a_lower_rung() -> None:
    small = Profile(family="small", kind="h200", count=1, step_seconds=1, peak_bytes=9)
    large = Profile(family="large", kind="h200", count=1, step_seconds=1, peak_bytes=11)
    lower = Profile(family="lower", kind="h200", count=1, step_seconds=1, peak_bytes=9, knobs={"recompute": True})
    failed = Trial(family="failed", technique="resident", kind="h200", count=1)
    found = Evidence(cluster=Cluster.uniform(H200), profiles=(small, large, lower), failed=frozenset({failed}))
    names = ["small", "large", "lower", "failed"]
    assert list(itertools.compress(names, (found.is_too_large(name, "h200") for name in names))) == names[1:]
    assert found.whole == (small, large)


@pytest.mark.parametrize("value", ["dovetail.planning:check", "dovetail.planning.techniques.fuse:SPEC"])
def test_an_entry_point_must_name_a_descriptor_of_its_own_name(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    entry = metadata.EntryPoint(name="waltz", value=value, group=GROUP)
    monkeypatch.setattr(metadata, "entry_points", lambda group: [entry] if group == GROUP else [])
    techniques.cache_clear()
    try:
        with pytest.raises(DovetailError, match="must name a TechniqueSpec with the entry's own, new name; waltz"):
            techniques()
    finally:
        techniques.cache_clear()
