"""Every parameter is in one segment, and a segment is something that is called as one."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dovetail.train.spill.lanes import ALIGNMENT
from dovetail.train.spill.segments import LiveSegment, cut, placeholder, prepare
from dovetail.train.weights import read_dtype, sites
from tests.train.spill.towers import CPU, Tower


def pieces(model: nn.Module, *, limit: int = 0, fixed: int = 0, precision: str = "fp32") -> list[LiveSegment]:
    return cut(model, limit_bytes=limit, fixed_bytes=fixed, precision=precision, device=CPU)


class Holder(nn.Module):
    """A module with children and a parameter of its own."""

    def __init__(self, *children: nn.Module) -> None:
        super().__init__()
        self.own = nn.Parameter(torch.zeros(3))
        for number, child in enumerate(children):
            self.add_module(f"child{number}", child)


leaves = st.builds(lambda width, trains: nn.Linear(width, 2).requires_grad_(trains), st.integers(1, 4), st.booleans())
leaves |= st.builds(lambda: nn.MultiheadAttention(4, 2)) | st.builds(lambda: nn.ReLU())
trees = st.recursive(
    leaves,
    lambda inner: st.lists(inner, min_size=1, max_size=3).flatmap(
        lambda children: st.sampled_from(
            [
                nn.Sequential(*children),
                nn.ModuleList(children),
                nn.ModuleDict({str(number): child for number, child in enumerate(children)}),
                Holder(*children),
            ]
        )
    ),
    max_leaves=8,
)


def tie(model: nn.Module, pairs: list[tuple[int, int]]) -> None:
    """Let some linear layers have the weights of others."""
    linear = [module for module in model.modules() if type(module) is nn.Linear]
    for one, other in pairs:
        if one < len(linear) and other < len(linear):
            linear[one].weight = linear[other].weight


@settings(max_examples=150)
@given(
    model=trees,
    limit=st.sampled_from([0, 40, 100, 1 << 20]),
    fixed=st.sampled_from([0, 600, 1 << 20]),
    precision=st.sampled_from(["fp32", "bf16", "bf16-pure"]),
    ties=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=3),
)
def test_laws_of_a_cut(model: nn.Module, limit: int, fixed: int, precision: str, ties: list[tuple[int, int]]) -> None:
    tie(model, ties)
    found = pieces(model, limit=limit, fixed=fixed, precision=precision)
    # Each parameter is in one segment, and there is nothing else.
    masters = [entry.master for segment in found for entry in segment.entries]
    assert len(masters) == len(set(masters))
    assert set(masters) == set(model.parameters())
    # They have names of their own, and numbers in their order.
    assert len({segment.name for segment in found}) == len(found)
    assert [segment.index for segment in found] == list(range(len(found)))
    names = dict(model.named_parameters())
    assert all(names[entry.name] is entry.master for segment in found for entry in segment.entries)
    for segment in found:
        _assert_entries_do_not_overlap(segment)
        _assert_called_as_one(model, segment, is_small=segment.travel_bytes < fixed)


def _assert_entries_do_not_overlap(segment: LiveSegment) -> None:
    end = 0
    for entry in segment.entries:
        assert entry.offset >= end
        assert entry.offset % ALIGNMENT == 0
        end = entry.offset + entry.master.numel() * entry.dtype.itemsize
        assert (entry.leaf.shape, entry.leaf.dtype) == (entry.master.shape, entry.dtype)
        assert entry.leaf.requires_grad == entry.master.requires_grad
    assert end <= segment.travel_bytes
    # Gradients are a front part of the same layout.
    trained = [entry.offset + entry.master.numel() * entry.dtype.itemsize for entry in segment.trainable]
    assert max(trained, default=0) <= segment.gradient_bytes <= segment.travel_bytes


def _assert_called_as_one(model: nn.Module, segment: LiveSegment, *, is_small: bool) -> None:
    containers = (nn.ModuleList, nn.ModuleDict)
    assert not any(isinstance(module, containers) for module in segment.modules)
    inside = {id(inner) for module in segment.modules for inner in module.modules()}
    held = {
        parameter: {id(module) for module, _ in places} <= inside
        for parameter, places in sites(model).items()
        if any(parameter is entry.master for entry in segment.entries)
    }
    # What is not inside of the modules that are called must always be there.
    assert segment.fixed == (is_small or not all(held.values()))


def test_tied_parameters_make_one_segment_of_their_modules() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))
    model[2].weight = model[0].weight
    found = pieces(model)
    assert [segment.name for segment in found] == ["0", "1", "3"]
    assert found[0].modules == [model[0], model[2]]
    assert [entry.name for entry in found[0].entries] == ["0.weight", "0.bias", "2.bias"]


def test_a_tie_between_tied_ones_makes_one_of_all() -> None:
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(4)))
    model[1].weight, model[3].weight = model[0].weight, model[2].weight
    model[3].bias = model[1].bias
    (found,) = pieces(model)
    assert sorted(map(id, found.modules)) == sorted(map(id, model))
    assert not found.fixed


def test_a_module_of_two_parents_is_one_segment() -> None:
    shared = nn.Linear(2, 2)
    (found,) = pieces(nn.ModuleDict({"one": nn.Sequential(shared), "two": nn.Sequential(shared)}))
    assert set(found.modules) == {shared}
    assert len(found.entries) == 2


def test_a_container_is_no_segment_however_small() -> None:
    model = nn.ModuleDict({"a": nn.ModuleList([nn.Linear(1, 1), nn.Linear(1, 1)]), "b": nn.Linear(1, 1)})
    assert [segment.name for segment in pieces(model, limit=1 << 20)] == ["a.0", "a.1", "b"]


@pytest.mark.parametrize(
    "module",
    [nn.MultiheadAttention(4, 2), nn.LSTM(2, 2), nn.TransformerEncoderLayer(4, 2, 4)],
    ids=lambda m: type(m).__name__,
)
def test_torchs_own_modules_are_not_cut(module: nn.Module) -> None:
    (found,) = pieces(nn.Sequential(module))
    assert found.modules == [module]
    assert not found.fixed


def test_a_stack_of_torchs_own_layers_is_cut_between_them() -> None:
    layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 4), 3, enable_nested_tensor=False)
    assert len(pieces(nn.Sequential(layers))) == 3


def test_what_is_the_very_own_of_a_module_that_is_cut_stays() -> None:
    model = Holder(nn.Linear(2, 2), nn.Linear(2, 2))
    found = {segment.name: segment for segment in pieces(model, limit=30)}
    assert found.keys() == {"*", "child0", "child1"}
    assert [segment.name for segment in found.values() if segment.fixed] == ["*"]
    assert found["*"].entries[0].master is model.own


def test_lists_of_parameters_stay() -> None:
    model = nn.Sequential(nn.ParameterList([torch.zeros(2), torch.zeros(2)]), nn.Linear(2, 2))
    assert [segment.fixed for segment in pieces(model)] == [True, False]


def test_what_is_small_stays() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(64, 64))
    assert [segment.fixed for segment in pieces(model, fixed=2048)] == [True, False]


@pytest.mark.parametrize(
    ("precision", "expected"),
    [
        (
            "fp32",
            {"linear": "float32", "norm": "float32", "embedding": "float32", "double": "float64", "half": "bfloat16"},
        ),
        (
            "bf16",
            {"linear": "bfloat16", "norm": "float32", "embedding": "float32", "double": "float64", "half": "bfloat16"},
        ),
        ("bf16-pure", dict.fromkeys(["linear", "norm", "embedding", "double", "half"], "bfloat16")),
    ],
)
def test_weights_travel_in_half_only_where_computing_is_the_same(precision: str, expected: dict[str, str]) -> None:
    modules = {
        "linear": nn.Linear(2, 2),
        "norm": nn.LayerNorm(2),
        "embedding": nn.Embedding(2, 2),
        "double": nn.Linear(2, 2).double(),
        "half": nn.Linear(2, 2).bfloat16(),
    }
    found = {
        name: str(read_dtype(module.weight, [(module, "weight")], precision)).removeprefix("torch.")
        for name, module in modules.items()
    }
    assert found == expected


def test_a_weight_that_an_embedding_reads_too_travels_whole() -> None:
    linear, embedding = nn.Linear(2, 2), nn.Embedding(2, 2)
    places = [(linear, "weight"), (embedding, "weight")]
    assert read_dtype(linear.weight, places, "bf16") == torch.float32
    assert read_dtype(linear.weight, places[:1], "bf16") == torch.bfloat16


def test_whose_forward_may_be_anything_travels_whole() -> None:
    class Mine(nn.Linear):
        pass

    mine = Mine(2, 2)
    assert read_dtype(mine.weight, [(mine, "weight")], "bf16") == torch.float32


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-pure"])
def test_whole_numbers_travel_as_they_are(precision: str) -> None:
    module = nn.Module()
    module.table = nn.Parameter(torch.zeros(3, dtype=torch.int64), requires_grad=False)
    assert read_dtype(module.table, [(module, "table")], precision) == torch.int64


def test_a_placeholder_has_the_shape_takes_nothing_and_is_no_number() -> None:
    found = placeholder(torch.zeros(100, 100), torch.bfloat16, CPU)
    assert (found.shape, found.dtype, found.untyped_storage().nbytes()) == ((100, 100), torch.bfloat16, 2)
    assert found.isnan().all()


def test_what_planning_is_told_of_a_segment() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16).requires_grad_(False))
    whole, frozen = (segment.record(8.0) for segment in pieces(model))
    assert (whole.parameters, whole.travel_bytes, whole.gradient_bytes, whole.state_bytes) == (272, 1536, 1536, 2176)
    assert (frozen.parameters, frozen.travel_bytes, frozen.gradient_bytes, frozen.state_bytes) == (0, 1536, 0, 0)
    half, *_ = (segment.record(8.0) for segment in pieces(model, precision="bf16-pure"))
    assert (half.travel_bytes, half.state_bytes) == (1024, 272 * 4 + 2176)  # with the masters beside what travels


@settings(max_examples=20)
@given(budget=st.integers(1, 1 << 14), layers=st.integers(1, 12))
def test_a_smaller_budget_never_gives_larger_segments(budget: int, layers: int) -> None:
    def largest(budget_bytes: int) -> int:
        model = nn.Sequential(*(Tower(2) for _ in range(layers)))
        return max(
            each.travel_bytes for each in prepare(model, budget_bytes=budget_bytes, precision="fp32", device=CPU)
        )

    assert largest(budget) <= largest(2 * budget)


def test_preparing_puts_weights_side_by_side_on_the_host() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).to(memory_format=torch.channels_last)
    expected = [parameter.detach().clone() for parameter in model.parameters()]
    prepare(model, budget_bytes=1 << 20, precision="fp32", device=CPU)
    for parameter, value in zip(model.parameters(), expected, strict=True):
        assert parameter.is_contiguous()
        assert torch.equal(parameter, value)
