"""Policies that cannot tell kinds apart."""

import dataclasses

from dovetail.planning.problem import Problem
from dovetail.planning.share.policies import Policy, equal_rates
from dovetail.vocabulary import Allocation


def blind(policy: Policy) -> Policy:
    """The policy, told that every task runs equally fast on every kind, at the mean of its rates, in proportion to the
    count, and alone.
    """

    def allocate(problem: Problem) -> Allocation:
        told = equal_rates(problem.options)
        true = {id(lie): option for lie, option in told}
        found = policy(dataclasses.replace(problem, options=tuple([lie for lie, _ in told])))
        shares = tuple(dataclasses.replace(share, option=true[id(share.option)]) for share in found.shares)
        return dataclasses.replace(found, shares=shares)

    return allocate
