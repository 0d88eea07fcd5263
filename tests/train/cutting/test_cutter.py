"""Models of every shape, in pieces: the bits of the whole."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from dovetail.planning.pipeline.partition import Fabric, Graph, partition
from dovetail.profile.layers import measure_layers
from dovetail.testing.programs import fresh
from dovetail.train import Training
from dovetail.train.cutting import ModelCall, capture_call, cut, equal
from dovetail.vocabulary import TechniqueRefused
from tests.train.cutting.chains import check, check_all, check_apart, layers, mean


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


class Residual(nn.Module):
    """A block with a shortcut, and in-place operations as vision models have them."""

    def __init__(self, channels):
        super().__init__()
        self.first, self.second = nn.Conv2d(channels, channels, 3, padding=1), nn.Conv2d(channels, channels, 1)
        self.norm = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        out = self.relu(self.norm(self.first(x)))
        out = self.second(out)
        out += x
        return self.relu(out)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(2, 3, 3)
        self.blocks = nn.ModuleList(Residual(3) for _ in range(2))
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(3, 4)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.drop(x.mean((2, 3))))


class UNet(nn.Module):
    """Long skips that pass over every stage between."""

    def __init__(self):
        super().__init__()
        self.down = nn.ModuleList([nn.Conv2d(1, 2, 3, padding=1), nn.Conv2d(2, 4, 3, padding=1)])
        self.middle = nn.Conv2d(4, 4, 3, padding=1)
        self.up = nn.ModuleList([nn.Conv2d(8, 2, 3, padding=1), nn.Conv2d(4, 1, 3, padding=1)])

    def forward(self, x):
        skips = []
        for conv in self.down:
            x = torch.relu(conv(x))
            skips.append(x)
            x = functional.max_pool2d(x, 2)
        x = self.middle(x)
        for conv in self.up:
            x = functional.interpolate(x, scale_factor=2)
            x = conv(torch.cat([x, skips.pop()], dim=1))
        return x


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 8)
        self.body = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.3))
        self.head = nn.Linear(8, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, words):
        return self.head(self.body(self.embedding(words)))


class Twice(nn.Module):
    """One module called three times, one of whose parts draws."""

    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(4, 4), nn.Linear(4, 1)
        self.shared = nn.Sequential(nn.Dropout(0.4), nn.Tanh())

    def forward(self, x):
        x = self.stem(x)
        for _ in range(3):
            x = x + self.shared(x)
        return self.head(x)


class Several(nn.Module):
    """Several inputs, one by name and one that is no tensor, and a nested output."""

    def __init__(self):
        super().__init__()
        self.left, self.right, self.both = nn.Linear(3, 4), nn.Linear(2, 4), nn.Linear(8, 2)

    def forward(self, x, pair, *, scale, weight=None):
        left, right = self.left(x), self.right(pair["y"])
        if weight is not None:
            right = right * weight
        both = self.both(torch.cat([left, right], -1)) * scale
        return {"both": both, "parts": (left, [right, None, scale])}


class Written(nn.Module):
    """Functional dropout between layers, a parameter and a buffer of its own, constants and slices in place."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.scale = nn.Parameter(torch.full((4,), 0.5))
        self.unused = nn.Parameter(torch.ones(1))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        ramp = torch.arange(x.shape[-1], dtype=x.dtype, device=x.device)
        for number, layer in enumerate(self.layers):
            x = functional.dropout(torch.tanh(layer(x * self.scale)), 0.3, self.training) + ramp
            x[:, number] = 0.0
        self.seen = self.seen + x.detach().mean()
        return x


def test_sequential_at_every_number_of_stages():
    model = nn.Sequential(
        nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.Identity(), nn.Linear(8, 1)
    )
    check_all(model, mean, torch.randn(6, 4))


def test_residuals_norms_and_in_place_operations():
    check_all(Network(), mean, torch.randn(3, 2, 8, 8))


def test_long_skips_are_relayed():
    model = UNet()
    check_all(model, mean, torch.randn(2, 1, 8, 8))
    call = ModelCall(args=(torch.randn(2, 1, 8, 8),))
    made = cut(model, call, stages=equal(model, call, 5))
    assert all(len(piece.gives) > 1 for piece in made.pieces[1:3])
    for one, other in zip(made.pieces, made.pieces[1:], strict=False):
        assert one.gives == other.takes


def test_tied_parameters_stay_one():
    model = Tied()
    check_all(model, mean, torch.randint(7, (4, 6)))
    call = ModelCall(args=(torch.randint(7, (4, 6)),))
    made = cut(model, call, stages=equal(model, call, 3))
    assert made.shared == {"embedding.weight": (0, 2)}
    assert made.pieces[0].names["embedding.weight"] is made.pieces[2].names["embedding.weight"] is model.head.weight


def test_a_module_called_in_several_stages_draws_as_in_the_whole():
    check_all(Twice(), mean, torch.randn(5, 4))


def test_several_inputs_and_outputs():
    def loss(model, batch):
        found = model(batch[0], {"y": batch[1]}, scale=2.0, weight=batch[2])
        return found["both"].sum() + found["parts"][0].mean() + found["parts"][1][0].mean() * found["parts"][1][2]

    check_all(Several(), loss, [torch.randn(5, 3), torch.randn(5, 2), torch.rand(5, 1)])


def test_what_is_between_layers():
    check_all(Written(), mean, torch.randn(5, 4))


def test_frozen_parts_and_evaluation_mode():
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 1))
    model[0].requires_grad_(False)
    model[1].eval()
    check_all(model, mean, torch.randn(6, 4))
    model[1].requires_grad_(False)
    call = ModelCall(args=(torch.randn(6, 4),))
    made = cut(model, call, stages=[["0", "1"], ["2", "3", "4"]])
    assert not made.pieces[0].likes["1:2.0"].requires_grad


def test_more_stages_than_layers():
    model, call = nn.Sequential(nn.Linear(2, 2), nn.ReLU()), ModelCall(args=(torch.ones(1, 2),))
    with pytest.raises(TechniqueRefused, match="2 layers, and 3 stages"):
        equal(model, call, 3)


def test_blocks_by_name():
    made = check(Network(), mean, torch.randn(3, 2, 8, 8), [["stem", "blocks.0"], ["blocks.1", "drop", "head"]])
    assert len(made.pieces[0].gives) == 1


class Doubled(torch.autograd.Function):
    """A custom function with operations inside, none of which is to be cut."""

    @staticmethod
    def forward(ctx, x):
        return (x * 4) / 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2.5


class Custom(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = Doubled.apply(layer(x))
        first, *rest = x.unbind(1)
        for row in x:  # the iterator of a tensor
            first = first + row.sum()
        return first, sum(rest)


def test_custom_functions_and_iteration():
    check_all(Custom(), mean, torch.randn(4, 4))


@pytest.mark.parametrize("name", ["recompute", "shared", "tied", "norm", "frozen", "dropout"])
def test_programs_of_the_conformance_suite(name):
    training = fresh(name).training
    batch = next(iter(training.batches))

    def loss(model, batch):
        found = training.loss(model, batch)
        return found[0] if isinstance(found, tuple) else found

    names = equal(training.model, capture_call(loss, training.model, batch), 1)[0]
    for bound in range(1, len(names)):
        stages = [names[:bound], names[bound:]]
        if name == "recompute" and bound not in (1, 5, 9):
            with pytest.raises(TechniqueRefused, match="activation checkpointing computes again as one"):
                check(training.model, loss, batch, stages)
        else:
            check(training.model, loss, batch, stages)


def test_autocast():
    model, batch = Network(), torch.randn(3, 2, 8, 8)

    def loss(model, batch):
        return model(batch).float().square().mean()

    with torch.autocast("cpu", dtype=torch.bfloat16):
        made = check(model, loss, batch, [["stem", "blocks.0"], ["blocks.1", "drop", "head"]])
    assert {like.dtype for like in made.pieces[1].likes.values()} <= {torch.bfloat16, torch.float32}


def test_moving_a_piece_moves_its_part_of_the_model():
    model, call = Network(), ModelCall(args=(torch.randn(3, 2, 8, 8),))
    made = cut(model, call, stages=[["stem", "blocks.0"], ["blocks.1", "drop", "head"]])
    made.pieces[1].double()
    assert model.head.weight.dtype == model.blocks[1].norm.running_mean.dtype == torch.float64
    assert model.blocks[0].norm.running_mean.dtype == model.stem.weight.dtype == torch.float32
    values = {name: value.double() for name, value in made.pieces[0](made.inputs(call)).items()}
    assert made.pieces[1](values)["output"].dtype == torch.float64
    assert int(model.blocks[1].norm.num_batches_tracked) == 1


def test_sizes_may_vary_by_step():
    example = torch.randn(3, 2, 8, 8)
    for count in (2, 4, 7):
        model = Network()
        stages = equal(model, ModelCall(args=(example,)), count)
        check(model, mean, torch.randn(5, 2, 9, 7), stages, example=example)
    model = UNet()
    stages = equal(model, ModelCall(args=(torch.randn(2, 1, 8, 8),)), 5)
    check(model, mean, torch.randn(3, 1, 16, 8), stages, example=torch.randn(2, 1, 8, 8))
    made = cut(model, ModelCall(args=(torch.randn(2, 1, 8, 8),)), stages=stages)
    other = made.pieces[0](made.inputs(ModelCall(args=(torch.randn(3, 1, 8, 8),))))
    with pytest.raises(ValueError, match="Where sizes vary by step"):
        made.pieces[1](other)


@pytest.mark.parametrize(
    ("build", "shape"), [(Network, (3, 2, 8, 8)), (UNet, (2, 1, 8, 8)), (Twice, (3, 4)), (Written, (3, 4))]
)
def test_pieces_use_nothing_but_their_own(build, shape):
    check_apart(build(), mean, torch.randn(shape), 3)


def test_cutting_leaves_the_model_as_it_was():
    model, batch = Network(), torch.randn(3, 2, 8, 8)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    drawn = torch.get_rng_state()
    cut(model, ModelCall(args=(batch,)), stages=equal(model, ModelCall(args=(batch,)), 3))
    assert torch.equal(drawn, torch.get_rng_state())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all("_compiled_call_impl" not in vars(module) for module in model.modules())


def test_layers_are_those_of_profiles():
    for model, batch in (
        (Network(), torch.randn(3, 2, 8, 8)),
        (UNet(), torch.randn(2, 1, 8, 8)),
        (Twice(), torch.randn(2, 4)),
    ):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        training = Training(model=model, batches=[], loss=mean, optimizer=optimizer)
        found, edges = measure_layers(training, batch, device=torch.device("cpu"), repeats=1)
        names = layers(model, capture_call(mean, model, batch))
        assert [layer.name for layer in found if "+" not in layer.name] == list(names)
        graph = Graph(layers=found, edges=edges)
        fabric = Fabric.uniform(sizes=(3,), bytes_per_second=(1e9,), kind="cpu")
        stages = [stage.layers for stage in partition(graph, fabric, depth=3).stages]
        check(model, mean, batch, stages)
