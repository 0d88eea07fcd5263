"""What is chosen of scores: screens, strata, sizes of rounds, and when random is what is left."""

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.selection.choosing import candidates, choose, decide, fold_of, hardest, round_sizes, screen
from dovetail.selection.record import Candidate

RANDOM = Candidate(method="random")


@given(count=st.integers(4, 300), folds=st.integers(2, 4), seed=st.integers(0, 5))
def test_folds_are_of_one_size_and_repeat(count, folds, seed):
    found = fold_of(count, folds=folds, seed=seed)
    sizes = numpy.bincount(found, minlength=folds)
    assert sizes.max() - sizes.min() <= 1
    assert (found == fold_of(count, folds=folds, seed=seed)).all()


def test_a_screen_drops_the_hardest_of_those_that_it_is_given():
    scores = numpy.random.default_rng(0).random(50)
    numbers = numpy.arange(0, 50, 2)
    kept = screen(numbers, scores, strength=0.2)
    assert len(kept) == 20
    assert scores[kept].max() < scores[numpy.setdiff1d(numbers, kept)].min()


@given(
    method=st.sampled_from(["random", "el2n", "ccs"]),
    count=st.integers(1, 120),
    size=st.integers(1, 100),
    seed=st.integers(0, 3),
)
def test_every_method_chooses_so_many_each_once(method, count, size, seed):
    generator = numpy.random.default_rng(seed)
    numbers, scores = numpy.arange(size) * 3, generator.random(3 * size)
    chosen, weights = choose(method, numbers, scores, count=count, generator=generator)
    assert len(chosen) == len(weights) == min(count, size)
    assert set(chosen) <= set(numbers)
    assert (numpy.diff(chosen) > 0).all()
    assert weights.min() >= 1


def test_strata_are_drawn_from_alike_and_weigh_what_they_stand_for():
    # A hundred easy ones and ten hard ones: half of what is chosen is hard, and easy ones stand for more.
    scores = numpy.concatenate([numpy.zeros(100), numpy.ones(10)])
    chosen, weights = choose("ccs", numpy.arange(110), scores, count=10, generator=numpy.random.default_rng(0))
    assert (chosen >= 100).sum() == 5
    assert set(weights[chosen >= 100]) == {1}
    assert set(weights[chosen < 100]) == {8}  # 100 / 5 against 10 / 5, and no more than eight


def test_equal_scores_are_one_stratum():
    chosen, weights = choose("ccs", numpy.arange(9), numpy.ones(9), count=4, generator=numpy.random.default_rng(0))
    assert len(chosen) == 4
    assert set(weights) == {1}


def test_the_hardest_come_hardest_first():
    assert hardest(numpy.array([4, 5, 6]), numpy.array([1.0, 3.0, 2.0]), count=5).tolist() == [5, 6, 4]


@given(count=st.integers(1, 500), rounds=st.integers(2, 20))
def test_rounds_grow_to_the_whole(count, rounds):
    sizes = round_sizes(count, rounds=rounds)
    assert sizes[-1] == count
    assert sizes[0] >= 1
    assert sorted(set(sizes)) == sizes
    assert len(sizes) == min(rounds, count)


def test_candidates_have_random_among_them():
    found = candidates(["maxgrad", "ccs"], [0.0, 0.2, 0.2])
    assert found[0] == RANDOM
    assert len(found) == 5


@pytest.mark.parametrize(
    ("other", "is_better"),
    [([0.9, 0.9, 0.9], True), ([0.7, 0.7, 0.7], False), ([0.8, 0.8, 0.81], False), ([0.6, 0.8, 1.1], False)],
)
def test_random_is_left_for_what_is_better_by_more_than_chance(other, is_better):
    candidate = Candidate(method="maxgrad", strength=0.1)
    found = decide({RANDOM: [0.8, 0.8, 0.8], candidate: other})
    assert (found == candidate) is is_better


def test_the_best_of_those_that_are_better_is_taken():
    trials = {RANDOM: [0.5, 0.5], Candidate(method="ccs"): [0.6, 0.6], Candidate(method="el2n"): [0.7, 0.7]}
    assert decide(trials).method == "el2n"
