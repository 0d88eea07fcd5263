import torch
from torch import nn

from dovetail.profile.flow import Flow, edges
from dovetail.profile.model_guard import hooks
from dovetail.train.cutting.interceptor import visible_modules


def flow_of(model, *inputs):
    flow = Flow()
    with hooks() as handles:
        for name, module in visible_modules(model).items():
            handles.extend(flow.watch(name, module))
        with flow:
            model(*inputs)
    return flow.layers()


def edges_of(model, *inputs):
    return set(edges(flow_of(model, *inputs)))


class Double(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x * 2

    @staticmethod
    def backward(context, gradient):
        return gradient * 2


class Residual(nn.Module):
    def __init__(self, between=lambda x: x):
        super().__init__()
        self.stem, self.inner, self.head = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)
        self.between = between

    def forward(self, x):
        x = self.stem(x)
        return self.head(self.between(x) + self.inner(x))


RESIDUAL = {("stem", "inner"), ("stem", "+1"), ("inner", "+1"), ("+1", "head")}


def test_a_skip_meets_the_main_path_in_a_sum():
    layers = flow_of(Residual(), torch.zeros(1, 2))
    assert set(edges(layers)) == RESIDUAL
    assert [(layer.name, layer.operation) for layer in layers][2] == ("+1", "add")


def test_through_custom_functions_views_and_without_gradients():
    for between in (Double.apply, torch.Tensor.detach, lambda x: x.view(-1)[:2].view(1, 2)):
        assert edges_of(Residual(between), torch.zeros(1, 2)) == RESIDUAL
    assert edges_of(Residual().requires_grad_(False), torch.zeros(1, 2)) == RESIDUAL


def test_in_place_layers_and_layers_that_hand_on_their_input():
    chain = nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True), nn.Identity(), nn.Flatten(), nn.Linear(2, 2))
    assert edges_of(chain, torch.zeros(1, 2)) == {("0", "1"), ("1", "2"), ("2", "3"), ("3", "4")}


def test_a_stream_of_sums_has_as_many_edges_as_sums():
    class Stream(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(5))

        def forward(self, x):
            for layer in self.layers:
                x = x + layer(x)
            return x

    found = edges_of(Stream(), torch.zeros(1, 2))
    assert ("+1", "+2") in found
    assert len(found) <= 3 * 5


def test_sums_made_before_the_first_module_inside_a_module():
    class Late(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(2)

        def forward(self, one, other):
            return self.norm(one + other)

    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.late = nn.Linear(2, 2), nn.Linear(2, 2), Late()

        def forward(self, x):
            return self.late(one=self.a(x), other=self.b(x))

    assert edges_of(Whole(), torch.zeros(1, 2)) == {("a", "late+1"), ("b", "late+1"), ("late+1", "late.norm")}


def test_a_module_with_parameters_of_its_own_is_a_source_of_its_parts():
    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.positions, self.head = nn.Linear(2, 2), nn.Parameter(torch.zeros(2)), nn.Linear(2, 2)

        def forward(self, x):
            return self.head(self.embed(x) + self.positions)

    layers = flow_of(Positions(), torch.zeros(1, 2))
    assert [layer.name for layer in layers] == ["", "embed", "+1", "head"]
    assert set(edges(layers)) == {("", "+1"), ("embed", "+1"), ("+1", "head")}


def test_torch_modules_are_one_layer_and_parts_used_without_a_call_belong_to_them():
    attention = nn.MultiheadAttention(4, 2)
    assert [layer.name for layer in flow_of(attention, *[torch.zeros(3, 1, 4)] * 3)] == [""]
    encoder = nn.TransformerEncoderLayer(4, 2, dim_feedforward=8)
    names = [layer.name for layer in flow_of(encoder, torch.zeros(3, 1, 4))]
    assert names[:3] == ["self_attn", "dropout1", "norm1"]
    assert "+1" in names


def test_edges_point_forward_in_time():
    layers = flow_of(nn.TransformerEncoderLayer(4, 2, dim_feedforward=8), torch.zeros(3, 1, 4))
    order = [layer.name for layer in layers]
    assert all(order.index(source) < order.index(target) for source, target in edges(layers))
