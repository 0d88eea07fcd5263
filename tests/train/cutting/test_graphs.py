"""Random graphs of layers, cut at random: the bits of the whole, or a reason."""

import torch
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from dovetail.train.cutting import capture_call, cut, equal
from dovetail.vocabulary import TechniqueRefused
from tests.train.cutting.chains import check, mean, pieces, whole

WIDTH = 3
LAYERS = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "tanh": nn.Tanh,
    "relu": lambda: nn.ReLU(inplace=True),
    "dropout": lambda: nn.Dropout(0.3),
    "norm": lambda: nn.BatchNorm1d(WIDTH),
    "block": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.2)),
}
JOINS = ("first", "sum", "product", "cat", "view", "in place", "dropout")


class Random(nn.Module):
    """Nodes in order, each a layer of what a join makes of some values before it."""

    def __init__(self, nodes):
        super().__init__()
        self.nodes = nodes
        self.layers = nn.ModuleDict({str(n): LAYERS[kind]() for n, (kind, _, _) in enumerate(nodes)})
        self.scale = nn.Parameter(torch.full((WIDTH,), 0.9))

    def join(self, how, values):
        """One value from several."""
        if how == "first" or len(values) == 1:
            return values[0]
        if how == "sum":
            return sum(values)
        if how == "product":
            return torch.stack(values).prod(0)
        if how == "cat":
            return torch.cat(values, -1)[:, -WIDTH:]
        if how == "view":
            return values[0].t().t() - values[1]
        if how == "dropout":
            return functional.dropout(values[0], 0.2, self.training) + values[1]
        found = values[0] + 1
        found *= values[1]
        return found

    def forward(self, x):
        values = [x * self.scale]
        for number, (_, how, sources) in enumerate(self.nodes):
            chosen = [values[source % len(values)] for source in sources]
            found = (
                chosen[0] if how == "raw" else chosen[0][:] if how == "alias" else self.join(how, chosen) * self.scale
            )
            values.append(self.layers[str(number)](found))
        return values[-1], values[len(values) // 2]


def nodes(*joins):
    node = st.tuples(
        st.sampled_from(sorted(LAYERS)), st.sampled_from(joins), st.lists(st.integers(0, 9), min_size=1, max_size=3)
    )
    return st.lists(node, min_size=2, max_size=7)


@settings(max_examples=20, deadline=None)
@given(nodes(*JOINS), st.data())
def test_stages_in_order(graph, data):
    torch.manual_seed(0)
    model, batch = Random(graph), torch.randn(4, WIDTH)
    names = equal(model, capture_call(mean, model, batch), 1)[0]
    bounds = sorted(data.draw(st.sets(st.integers(1, len(names) - 1), max_size=4)))
    stages = [names[a:b] for a, b in zip([0, *bounds], [*bounds, len(names)], strict=True)]
    assert check(model, mean, batch, stages).is_ordered


def stages_of(model, batch, data):
    """A random partition in which no layer reads from a later stage, whatever the order of the code."""
    names = equal(model, capture_call(mean, model, batch), 1)[0]
    found: dict[str, int] = {}
    values = [0]
    for number, (_, _, sources) in enumerate(model.nodes):
        least = max(values[source % len(values)] for source in sources)
        for name in (name for name in names if name.split(".")[1] == str(number)):
            least = found[name] = data.draw(st.integers(least, 3))
        values.append(least)
    used = sorted(set(found.values()))
    return [[name for name in names if found[name] == stage] for stage in used]


@settings(max_examples=20, deadline=None)
@given(nodes("first", "sum", "product", "cat", "view", "in place"), st.data())
def test_stages_against_the_order_of_the_code(graph, data):
    torch.manual_seed(0)
    model, batch = Random(graph), torch.randn(4, WIDTH)
    stages = stages_of(model, batch, data)
    expected = whole(model, mean, batch)
    found, made = pieces(model, mean, batch, stages)
    for name, tensor in expected.items():
        # Only the order of sums of gradients may differ, and only here.
        exact = made.is_ordered or "grad" not in name
        torch.testing.assert_close(found[name], tensor, **({"rtol": 0, "atol": 0} if exact else {}))


def test_branches_apart():
    graph = [("linear", "first", [0]), ("linear", "first", [0]), ("linear", "first", [1]), ("linear", "sum", [2, 3])]
    model, batch = Random(graph), torch.randn(4, WIDTH)
    made = cut(model, capture_call(mean, model, batch), stages=[["layers.1"], ["layers.0", "layers.2", "layers.3"]])
    assert not made.is_ordered
    assert (
        whole(model, mean, batch)["loss"]
        == pieces(model, mean, batch, [["layers.1"], ["layers.0", "layers.2", "layers.3"]])[0]["loss"]
    )


@settings(max_examples=20, deadline=None)
@given(nodes("raw", "alias", "sum", "in place"), st.data())
def test_what_changes_in_place_is_exact_or_refused(graph, data):
    torch.manual_seed(0)
    model, batch = Random(graph), torch.randn(4, WIDTH)
    stages = stages_of(model, batch, data)
    try:
        expected = whole(model, mean, batch)
    except RuntimeError:  # autograd itself refuses some of these
        reject()
    try:
        found, made = pieces(model, mean, batch, stages)
    except TechniqueRefused:
        return
    for name, tensor in expected.items():
        exact = made.is_ordered or "grad" not in name
        torch.testing.assert_close(found[name], tensor, **({"rtol": 0, "atol": 0} if exact else {}))
