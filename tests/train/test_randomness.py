import copy
import random

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from dovetail.feeds.keys import key
from dovetail.train.randomness import KeyedRandomness, count_call, reseed, uncounted
from dovetail.vocabulary import CheckpointError

CPU = torch.device("cpu")
parts = st.lists(st.integers() | st.text(alphabet="ab-.1"), min_size=1, max_size=4)


@given(parts, parts)
def test_keys_differ_where_their_parts_do(one, other):
    assert (key(*one) == key(*other)) == ([str(part) for part in one] == [str(part) for part in other])


@given(parts)
def test_keys_fit_every_generator(found):
    assert 0 <= key(*found) < 1 << 63
    reseed(*found)


def draws():
    return random.random(), numpy.random.rand(), float(torch.rand(()))


def test_all_three_generators_are_seeded():
    reseed(1, "a")
    first = draws()
    draws()
    reseed(1, "a")
    assert draws() == first
    reseed(2, "a")
    assert all(one != other for one, other in zip(draws(), first, strict=True))


def keyed(model, seed=0):
    return KeyedRandomness(model, seed=seed, device=CPU)


def mask(model, randomness, step=0, microbatch=0):
    randomness.begin(step, microbatch)
    return model(torch.ones(64))


def test_masks_depend_on_seed_step_microbatch_and_module():
    model = nn.Sequential(nn.Dropout(0.5))
    other = nn.Sequential(nn.Identity(), nn.Dropout(0.5))
    one = mask(model, keyed(model))
    assert torch.equal(one, mask(model, keyed(model)))
    changed = [
        mask(model, keyed(model, seed=1)),
        mask(model, keyed(model), step=1),
        mask(model, keyed(model), microbatch=1),
        mask(other, keyed(other)),
    ]
    assert not any(torch.equal(one, each) for each in changed)


def test_a_mask_does_not_depend_on_what_stands_before_it():
    # The same module in another process, without its neighbour, draws the same.
    pair = nn.ModuleDict({"first": nn.Dropout(0.5), "second": nn.Dropout(0.5)})
    randomness = keyed(pair)
    randomness.begin(0, 0)
    pair["first"](torch.ones(8))
    both = pair["second"](torch.ones(64))
    randomness.begin(0, 0)
    assert torch.equal(pair["second"](torch.ones(64)), both)


def test_a_module_called_twice_draws_twice():
    model = nn.Dropout(0.5)
    randomness = keyed(model)
    randomness.begin(0, 0)
    first, second = model(torch.ones(64)), model(torch.ones(64))
    assert not torch.equal(first, second)


def test_closing_leaves_every_module_as_it_was():
    model = nn.TransformerEncoderLayer(8, 2, dropout=0.1)
    before = [(type(module), vars(module).copy()) for module in model.modules()]
    randomness = keyed(model)
    assert [type(module) for module in model.modules()] != [kind for kind, _ in before]
    assert repr(model) == repr(nn.TransformerEncoderLayer(8, 2, dropout=0.1))
    randomness.close()
    for module, (kind, attributes) in zip(model.modules(), before, strict=True):
        assert type(module) is kind
        assert vars(module).keys() == attributes.keys()


def test_a_module_whose_forward_was_patched_is_keyed_too():
    model = nn.Sequential(nn.Dropout(0.5))
    one = mask(model, keyed(model))
    patched = nn.Sequential(nn.Dropout(0.5))
    patched[0].forward = lambda inputs: nn.functional.dropout(inputs, 0.5)
    assert torch.equal(mask(patched, keyed(patched)), one)


def test_a_copy_of_a_model_keeps_its_own_weights_and_mode():
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, inputs):
            return nn.functional.dropout(inputs * self.weight, 0.5, self.training)

    model = Noisy()
    keyed(model)
    copied = copy.deepcopy(model).eval()
    with torch.no_grad():
        copied.weight.fill_(3.0)
    assert torch.equal(copied(torch.ones(4)), torch.full((4,), 3.0))


def test_two_sessions_in_one_process_keep_their_own_generators():
    # Python's and NumPy's generators are carried: each session draws on as if it were alone.
    def drawn(*, alone):
        one, other = keyed(nn.Linear(1, 1), seed=1), keyed(nn.Linear(1, 1), seed=2)
        one.before_batch(0, -1)
        found = [(random.random(), numpy.random.rand())]
        if not alone:
            other.before_batch(0, -1)
            draws()
            reseed("a build")
        one.before_batch(0, 0)
        found.append((random.random(), numpy.random.rand()))
        one.close()
        other.close()
        return found

    assert drawn(alone=True) == drawn(alone=False)


def test_an_evaluation_leaves_the_generators_where_they_stood():
    randomness = keyed(nn.Linear(1, 1))
    randomness.before_batch(0, -1)
    before = randomness.state()
    with randomness.evaluation(3):
        first = draws()
    assert randomness.state() == before
    with randomness.evaluation(3):
        assert draws() == first


def test_what_is_drawn_next_can_be_restored():
    randomness = keyed(nn.Linear(1, 1))
    randomness.before_batch(0, -1)
    state = randomness.state()
    first = random.random(), numpy.random.rand()
    other = keyed(nn.Linear(1, 1))
    other.restore(state)
    assert (random.random(), numpy.random.rand()) == first


def test_random_numbers_of_another_scheme_are_refused():
    with pytest.raises(CheckpointError, match=r"keyed by the scheme 'keyed-1'.*'other'"):
        keyed(nn.Linear(1, 1)).restore({"scheme": "other"})


DRAWS = {
    "nothing": lambda: 0.0,
    "uniform": lambda: numpy.random.rand(),
    "half of a pair": lambda: numpy.random.standard_normal(),
    "many": lambda: float(numpy.random.rand(700).sum()),
    "python": lambda: random.random(),
    "gauss": lambda: random.gauss(),
}


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(sorted(DRAWS))), max_size=25))
def test_sessions_that_take_turns_draw_what_each_would_draw_alone(turns):
    def sessions():
        return [KeyedRandomness(nn.Linear(1, 1), seed=seed, device=torch.device("cpu")) for seed in range(3)]

    def draw(session, epoch, what):
        session.before_batch(0, epoch)
        return DRAWS[what]()

    def begun(each):
        each.before_batch(0, -1)
        return each

    expected = []
    for number, session in enumerate(sessions()):
        begun(session)
        expected.append([draw(session, 0, what) for one, what in turns if one == number])
        session.close()
    together = [begun(each) for each in sessions()]
    found = [[] for _ in together]
    for number, what in turns:
        found[number].append(draw(together[number], 0, what))
    for session in together:
        session.close()
    assert found == expected
    states = [copy.deepcopy(each.state()) for each in map(begun, sessions())]
    assert all(state["carried"]["numpy"][0] == "MT19937" and len(state["carried"]["numpy"]) == 5 for state in states)


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.dropout = nn.Linear(4, 4), nn.Dropout(0.5)

    def forward(self, x):
        return self.dropout(self.inner(x)) + 1


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch's own, where it compiles
@pytest.mark.parametrize("whole", [True, False])
def test_what_is_compiled_stays_one_graph_and_draws_by_its_step(whole):
    graphs = []

    def compiler(graph, example):
        graphs.append(sum(node.op == "call_function" for node in graph.graph.nodes))
        return graph.forward

    def drawn(steps):
        torch._dynamo.reset()
        torch.manual_seed(0)
        blocks = Noisy(), Noisy()
        for block in blocks if not whole else ():
            block.compile(backend=compiler, fullgraph=True)
        model = nn.Sequential(*blocks)
        model = torch.compile(model, backend=compiler, fullgraph=True) if whole else model
        randomness = KeyedRandomness(model, seed=0, device=CPU)
        found = []
        for step in steps:
            randomness.begin(step, 0)
            found.append(model(torch.ones(2, 4)).tolist())
        randomness.close()
        return found

    undisturbed = drawn([1, 2, 3])
    assert set(graphs) == {6 if whole else 3}
    assert len({str(each) for each in undisturbed}) == 3
    assert drawn([3]) == undisturbed[2:]


def test_a_compiled_block_draws_the_same_whatever_was_drawn_before_it():
    torch.manual_seed(0)
    block = Noisy()
    block.compile(backend="eager")
    randomness = KeyedRandomness(block, seed=0, device=CPU)
    randomness.begin(1, 0)
    first = block(torch.ones(2, 4))
    randomness.begin(1, 0)
    torch.rand(3)
    assert torch.equal(block(torch.ones(2, 4)), first)
    own = vars(block)["_compiled_call_impl"]
    randomness.close()
    assert vars(block)["_compiled_call_impl"] is not own


class DrawsAfter(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    def forward(self, x):
        return nn.functional.dropout(self.block(x), 0.5, self.training)


def test_what_is_compiled_and_draws_nothing_leaves_the_key_as_it_is():
    def drawn(compiles):
        torch.manual_seed(0)
        model = DrawsAfter()
        if compiles:
            model.block.compile(backend="eager")
        randomness = KeyedRandomness(model, seed=0, device=CPU)
        randomness.begin(1, 0)
        found = model(torch.ones(2, 4))
        randomness.close()
        return found

    assert torch.equal(drawn(True), drawn(False))


def test_a_call_of_a_compiled_block_that_another_process_makes_is_counted():
    def drawn(counts):
        torch.manual_seed(0)
        block = Noisy()
        block.compile(backend="eager")
        randomness = KeyedRandomness(block, seed=0, device=CPU)
        randomness.begin(1, 0)
        if counts:
            count_call(block)
        else:
            block(torch.ones(2, 4))
        found = block(torch.ones(2, 4))
        with uncounted(block):
            block(torch.ones(2, 4))
        again = block(torch.ones(2, 4))
        randomness.close()
        return found, again

    for one, other in zip(drawn(True), drawn(False), strict=True):
        assert torch.equal(one, other)
