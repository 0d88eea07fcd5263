"""What a feed gives as a plan has it. Chooses nothing."""

from collections.abc import Sequence

from dovetail.planning.feeds.feed_model import ANYONE, CONSUMER, model_of
from dovetail.planning.feeds.remote_reading import read_remotely
from dovetail.vocabulary.feeds import FeedConsumer, FeedPlan, RemoteProfile, StageProfile


def predict_feed(
    profiles: Sequence[StageProfile],
    plan: FeedPlan,
    *,
    cores: float,
    consumer: FeedConsumer = ANYONE,
    remote: RemoteProfile | None = None,
) -> tuple[float, str]:
    """What a feed gives with the workers of a plan, in final items per second, and what keeps it from more.
    Its workers on other nodes count where `remote` says what was measured of these.

    >>> from dovetail.vocabulary.feeds import StagePlan
    >>> read = StageProfile(name="read", worker="thread", service_seconds=0.01)
    >>> plan = FeedPlan(stages=(StagePlan(name="read", worker="thread", workers=3),))
    >>> predict_feed([read], plan, cores=1), predict_feed([read], plan, cores=1, consumer=FeedConsumer(per_second=50))
    ((300.0, 'read'), (50, 'the consumer'))
    """
    model = model_of(profiles, plan.stages)
    found = model.limits(cores=cores, consumer=consumer)
    for kind in model.kinds:
        pool = model.pool(kind)
        found[pool.name] = pool.rate(sum(plan.stages[stage].workers for stage in model.stages_of(kind)))
    wall = min(found, key=lambda name: found[name])
    if not plan.remote_workers or remote is None or wall == CONSUMER:
        return found[wall], wall
    reading = read_remotely(
        model,
        remote,
        plan.remote_workers,
        own_rate=found[wall],
        own_wall=wall,
        cores=cores,
        consumer=consumer,
    )
    return reading.rate, reading.wall
