import math

import pytest

from dovetail.vocabulary import FeedConsumer, FeedPlan, InvalidRecord, StagePlan, StageProfile


def profile(**fields):
    return StageProfile(**{"name": "decode", "worker": "thread", "service_seconds": 1e-3, **fields})


def test_the_universal_law_has_a_peak_where_workers_interfere():
    assert profile().rate(3) == pytest.approx(3000)
    assert profile(contention=1.0).rate(3) == pytest.approx(1000)
    interfering = profile(coherency=0.1)
    assert interfering.rate(3) > interfering.rate(1)
    assert interfering.rate(100) < interfering.rate(3)
    assert profile(service_seconds=0.0).rate(1) == math.inf


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"worker": "fork"}, r"stage 'decode' must have workers of a kind among \['thread', 'process'\], got 'fork'"),
        ({"service_seconds": math.nan}, "must have seconds of at least 0 and inputs > 0; that of 'decode' has"),
        ({"inputs": 0.0}, "and inputs > 0"),
        ({"contention": -0.1}, "must have contention, coherency and bytes of at least 0"),
        ({"worker_bytes": -1}, "must have contention, coherency and bytes of at least 0"),
    ],
)
def test_profiles_that_cannot_be(fields, message):
    with pytest.raises(InvalidRecord, match=message):
        profile(**fields)


def test_plans_that_cannot_be():
    stage = StagePlan(name="read", worker="thread", workers=1)
    with pytest.raises(InvalidRecord, match="must have at least 1 worker"):
        StagePlan(name="read", worker="thread", workers=0)
    with pytest.raises(InvalidRecord, match=r"must have names of their own, got \['read', 'read'\]"):
        FeedPlan(stages=(stage, stage))
    with pytest.raises(InvalidRecord, match="must give items_per_second >= 0, got nan"):
        FeedPlan(stages=(), items_per_second=math.nan)
    with pytest.raises(InvalidRecord, match=r"must have the stage 'decode'; it has \['read'\]"):
        FeedPlan(stages=(stage,)).stage("decode")


@pytest.mark.parametrize(
    "fields", [{"per_second": 0.0}, {"per_second": math.nan}, {"cpu_seconds": -1.0}, {"lock_seconds": math.inf}]
)
def test_a_consumer_takes_something_in_some_time(fields):
    with pytest.raises(
        InvalidRecord, match="a feed's consumer must take more than 0 items per second, or None for all"
    ):
        FeedConsumer(**fields)
