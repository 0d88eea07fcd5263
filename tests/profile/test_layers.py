import itertools
import math

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from dovetail.profile import layers as module
from dovetail.profile.layers import measure_layers, parameter_bytes
from tests.profile.programs import of, training

CPU = torch.device("cpu")


def measure(found, batch, device=CPU):
    return measure_layers(found, batch, device=device, repeats=2)


def are_sound(layers):
    seconds = [each for layer in layers for each in (layer.forward_seconds, layer.backward_seconds)]
    return all(math.isfinite(each) and each >= 0 for each in seconds) and sum(seconds) > 0


def test_a_chain():
    layers, edges = measure(training(), {"x": torch.randn(16, 4)})
    assert edges == (("stem", "body.0"), ("body.0", "body.1"), ("body.1", "head"))
    assert [layer.parameter_bytes for layer in layers] == [160, 288, 288, 36]
    assert [layer.activation_bytes for layer in layers] == [512, 512, 512, 64]
    assert all(layer.forward_seconds > 0 and layer.backward_seconds > 0 for layer in layers)


def test_a_module_called_twice():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x):
            return self.layer(self.layer(x).relu())

    layers, edges = measure(of(Twice()), torch.randn(3, 2))
    assert edges == (("layer", "layer#2"),)
    assert [(layer.name, layer.parameter_bytes) for layer in layers] == [("layer", 24), ("layer#2", 0)]
    assert all(layer.backward_seconds > 0 for layer in layers)


def test_tied_weights_count_once_at_the_first_layer_that_runs():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4, 10, bias=False)
            self.embed = nn.Embedding(10, 4)
            self.head.weight = self.embed.weight

        def forward(self, x):
            return self.head(self.embed(x))

    layers, edges = measure(of(Tied()), torch.randint(0, 10, (2, 3)))
    assert {layer.name: layer.parameter_bytes for layer in layers} == {"embed": 160, "head": 0}
    assert edges == (("embed", "head"),)


def test_parameters_of_modules_that_are_no_layers_go_to_the_nearest():
    model = nn.ModuleDict({"a": nn.MultiheadAttention(4, 2), "b": nn.Linear(2, 2)})
    assert parameter_bytes(model, ["a", "b"]) == {"a": sum(p.nbytes for p in model["a"].parameters()), "b": 24}
    assert parameter_bytes(model, []) == {}


def test_a_language_model():
    from transformers import GPT2Config, GPT2LMHeadModel

    settings = {"vocab_size": 50, "n_positions": 16, "bos_token_id": 0, "eos_token_id": 0, "loss_type": "ForCausalLM"}
    model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=32, n_head=2, **settings))
    batch = {"input_ids": torch.randint(0, 50, (2, 16))}
    batch["labels"] = batch["input_ids"]
    layers, edges = measure(of(model, lambda model, batch: model(**batch).loss), batch)
    assert are_sound(layers)
    assert sum(layer.parameter_bytes for layer in layers) == sum(p.nbytes for p in model.parameters())
    assert ("transformer.h.0.attn.c_attn", "transformer.h.0.attn.c_proj") in edges
    assert ("transformer.h.0+2", "transformer.h.1+1") in edges  # the residual stream
    assert len(edges) < 2 * len(layers)


def test_nothing_is_left_behind():
    model = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1)).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    batch = torch.randn(8, 2)
    given, state = batch.clone(), torch.get_rng_state()
    layers, _ = measure(of(model, lambda model, batch: model(batch.mul_(2)).mean()), batch)
    assert len(layers) == 4
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(batch, given)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(each.training for each in model.modules())
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in model.modules())


def test_losses_may_empty_the_batch_and_tell_metrics():
    def loss(model, batch):
        target = batch.pop("y")
        return (model(batch["x"]) - target).square().mean(), {"seen": 1}

    layers, _ = measure(of(nn.Linear(2, 1), loss), {"x": torch.zeros(3, 2), "y": torch.zeros(3, 1)})
    assert [layer.name for layer in layers] == [""]


def test_frozen_in_place_recurrent_and_checkpointed_parts():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.frozen = nn.Linear(2, 4).requires_grad_(False)
            self.relu, self.recurrent, self.inner = nn.ReLU(inplace=True), nn.LSTM(4, 4), nn.Linear(4, 4)
            self.head = nn.Linear(4, 1)

        def forward(self, x):
            x, _ = self.recurrent(self.relu(self.frozen(x)))
            return self.head(checkpoint(self.inner, x, use_reentrant=False))

    layers, edges = measure(of(Mixed()), torch.randn(3, 1, 2))
    assert are_sound(layers)
    names = ["frozen", "relu", "recurrent", "inner", "head"]
    assert [layer.name for layer in layers] == names
    assert edges == tuple(itertools.pairwise(names))
    assert {layer.name for layer in layers if layer.backward_seconds > 0} == {"recurrent", "inner", "head"}


def test_all_frozen_and_half_precision():
    layers, _ = measure(of(nn.Linear(2, 2).requires_grad_(False)), torch.randn(3, 2))
    assert [layer.backward_seconds for layer in layers] == [0.0]
    layers, _ = measure(training(precision="bf16"), {"x": torch.randn(16, 4)})
    assert [layer.activation_bytes for layer in layers] == [256, 256, 256, 32]


def test_no_layers_where_they_cannot_be_had(monkeypatch):
    stepped = training(loss=None, step=lambda training, batch: {"loss": 0.0})
    assert measure(stepped, {"x": torch.randn(16, 4)}) == ((), ())
    assert measure(of(nn.LazyLinear(2)), torch.randn(3, 2)) == ((), ())
    refusing = training()
    monkeypatch.setattr(refusing.model.stem, "register_forward_pre_hook", None)
    assert measure(refusing, {"x": torch.randn(16, 4)}) == ((), ())
    broken = training(loss=lambda model, batch: model(batch["x"]) / 0 @ None)
    assert measure(broken, {"x": torch.randn(16, 4)}) == ((), ())
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in broken.model.modules())


@pytest.mark.gpu
def test_on_a_device():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    found = training(width=512, precision="bf16")
    layers, edges = measure(found, {"x": torch.randn(16, 4)}, device=torch.device("cuda"))
    assert edges == (("stem", "body.0"), ("body.0", "body.1"), ("body.1", "head"))
    assert all(layer.forward_seconds > 0 and layer.backward_seconds > 0 for layer in layers)
    assert not next(found.model.parameters()).is_cuda


def test_first_nodes_of_a_loss_without_a_graph():
    assert module._first_nodes(torch.zeros(()), [0]) == {}


def test_what_a_program_compiles_is_measured_as_written():
    def compiler(graph, inputs):
        raise AssertionError("hooks must not be compiled: CUDA events in them would never be recorded")

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            return self.inner(x).relu()

    model = nn.Sequential(nn.Linear(4, 4), Block(), nn.Linear(4, 1))
    model[1].compile(backend=compiler)
    layers, _ = measure(of(model), torch.randn(3, 4))
    assert [layer.name for layer in layers] == ["0", "1", "2"]
    with pytest.raises(Exception, match="hooks must not be compiled"), torch.no_grad():
        model(torch.randn(3, 4))  # still compiled
