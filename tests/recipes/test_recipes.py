"""What holds for every recipe: it learns, its data repeat themselves, and its workload can be described."""

import itertools
import math
from pathlib import Path

import pytest
import torch
from torch.utils._pytree import tree_leaves

from dovetail.describe import load_workload
from dovetail.describe.programs import load_file
from dovetail.train import RESIDENT, SessionMember

RECIPES = Path(__file__).parents[2] / "recipes"

# Each program as small as it still learns.
SMALL = {
    "digits:mlp": {"width": 64, "learning_rate": 1e-2},
    "digits:cnn": {"channels": 16, "learning_rate": 5e-3},
    "charlm:charlm": {"width": 32, "depth": 1, "heads": 2, "context": 32, "batch": 8, "learning_rate": 1e-2},
    "sweep:cnn": {"learning_rate": 5e-3},
    "sweep:resnet": {"width": 32, "learning_rate": 1e-2},
    "sweep:lstm": {"width": 32, "context": 16, "batch": 8, "learning_rate": 1e-2},
    "gpt:gpt": {"size": "tiny", "context": 32, "batch": 4, "learning_rate": 1e-2},
    "finetune:finetune": {
        "width": 32,
        "depth": 1,
        "context": 32,
        "batch": 4,
        "learning_rate": 1e-2,
        "schedule_steps": 20,
    },
}
STATEFUL = ["charlm:charlm", "sweep:lstm", "gpt:gpt"]
every_program = pytest.mark.parametrize("name", SMALL)


@pytest.fixture(autouse=True)
def _tiny_gpt(monkeypatch):
    gpt = load_file(RECIPES / "gpt.py")
    monkeypatch.setitem(gpt.SIZES, "tiny", gpt.Size(depth=2, width=64, heads=2, tied=True, vocabulary=1024))


def build(name, **parameters):
    file, function = name.split(":")
    torch.manual_seed(0)
    return getattr(load_file(RECIPES / f"{file}.py"), function)(**SMALL[name] | parameters)


def train(training, *, steps):
    """The bare loop that a recipe stands for; gives each step's loss."""
    feed = itertools.chain.from_iterable(itertools.repeat(training.batches))
    losses = []
    for _ in range(steps):
        training.optimizer.zero_grad()
        parts = [training.loss(training.model, next(feed)) / training.accumulate for _ in range(training.accumulate)]
        torch.stack(parts).sum().backward()
        if training.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(training.model.parameters(), training.clip_norm)
        training.optimizer.step()
        if training.schedule is not None:
            training.schedule.step()
        losses.append(sum(part.item() for part in parts))
    return losses


def evaluate(training):
    training.model.eval()
    with torch.no_grad():
        metrics = training.evaluate(training.model)
    training.model.train()
    return metrics


def flat(batches):
    """All numbers of some batches in one row."""
    return torch.cat([leaf.flatten().double() for batch in batches for leaf in tree_leaves(batch)])


def first_batches(name, *, seed):
    batches = build(name, seed=seed).batches
    torch.manual_seed(seed)  # as Dovetail does; what a shuffling DataLoader draws from
    return flat(itertools.islice(batches, 3))


@every_program
def test_training_reduces_the_loss(name):
    training = build(name)
    before = evaluate(training)["held_out_loss"]
    losses = train(training, steps=15)
    assert sum(losses[-3:]) < 0.95 * sum(losses[:3])
    assert evaluate(training)["held_out_loss"] < before


@every_program
def test_evaluation_gives_finite_numbers_and_changes_nothing(name):
    training = build(name)
    first, second = evaluate(training), evaluate(training)
    assert first == second
    assert all(isinstance(value, float) and math.isfinite(value) for value in first.values())


@every_program
def test_what_is_held_out_is_the_same_for_every_seed(name):
    assert evaluate(build(name, seed=0)) == evaluate(build(name, seed=1))


@every_program
def test_batches_depend_on_the_seed_alone(name):
    assert torch.equal(first_batches(name, seed=0), first_batches(name, seed=0))
    assert not torch.equal(first_batches(name, seed=0), first_batches(name, seed=1))


@every_program
def test_batches_are_as_many_as_they_say_and_differ_between_epochs(name):
    batches = build(name).batches
    first, second = list(batches), list(batches)
    assert len(first) == len(second) == len(batches)
    assert not torch.equal(flat(first[:1]), flat(second[:1]))


@pytest.mark.parametrize("name", STATEFUL)
def test_batches_go_on_from_their_state(name):
    for taken in (0, 3, None):  # None: all of the epoch
        batches, resumed = build(name).batches, build(name).batches
        iterator = iter(batches)
        for _ in range(len(batches) if taken is None else taken):
            next(iterator)
        torch.manual_seed(taken or 7)  # hidden dependence on the global generator would show
        resumed.load_state_dict(batches.state_dict())
        rest, resumed_rest = list(iterator), list(resumed)
        assert len(rest) == len(resumed_rest) == (0 if taken is None else len(batches) - taken)
        assert not rest or torch.equal(flat(rest), flat(resumed_rest))
        assert torch.equal(flat(itertools.islice(batches, 2)), flat(itertools.islice(resumed, 2)))  # the next epoch


def open_session(name, **parameters):
    return RESIDENT.open([SessionMember(training=build(name, **parameters))], device=torch.device("cpu"), threads=1)


@every_program
def test_a_stopped_training_goes_on_exactly(name):
    whole, stopped, resumed = open_session(name), open_session(name), open_session(name)
    losses = [whole.advance()[0].loss for _ in range(4)]
    for _ in range(2):
        stopped.advance()
    resumed.load(stopped.state())
    assert [resumed.advance()[0].loss for _ in range(2)] == losses[2:]


@pytest.mark.parametrize(
    ("name", "epochs", "parameters"),
    [
        ("digits:mlp", 12, {"width": 64, "learning_rate": 3e-3}),
        ("digits:cnn", 7, {"channels": 16, "learning_rate": 5e-3}),
    ],
)
def test_digits_are_recognised(name, epochs, parameters):
    training = build(name, **parameters)
    train(training, steps=epochs * training.steps_per_epoch())
    assert evaluate(training)["accuracy"] >= 0.93


@pytest.mark.parametrize("size", ["10m", "30m", "124m", "350m", "760m", "1.4b", "2.7b", "6.9b"])
def test_gpt_sizes_have_the_parameters_they_are_named_for(size):
    gpt = load_file(RECIPES / "gpt.py")
    named = float(size[:-1]) * {"m": 1e6, "b": 1e9}[size[-1]]
    with torch.device("meta"):
        model = gpt.GPT(gpt.SIZES[size], context=1024)
    assert sum(parameter.numel() for parameter in model.parameters()) == pytest.approx(named, rel=0.05)


def test_gpt_tokens_have_four_successors_each():
    gpt = load_file(RECIPES / "gpt.py")
    tokens = gpt.Tokens(1000, context=2000, batch=20, seed=0).draw(0)
    pairs = {(a, b) for row in tokens.tolist() for a, b in itertools.pairwise(row)}
    assert len({a for a, _ in pairs}) == 512
    assert len(pairs) == 4 * 512


def test_checkpointing_changes_no_gradient():
    plain, checkpointed = build("gpt:gpt"), build("gpt:gpt", checkpointing=True)
    for training in (plain, checkpointed):
        training.loss(training.model, training.batches.draw(0)).backward()
    for one, other in zip(plain.model.parameters(), checkpointed.model.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)


# Where the CPU has no bf16, torch says so once and computes by another way.
@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
def test_gpt_in_bf16_is_near_fp32():
    single, half = (open_session("gpt:gpt", precision=precision).advance()[0].loss for precision in ("fp32", "bf16"))
    assert single != half
    assert single.item() == pytest.approx(half.item(), rel=0.01)


@pytest.mark.parametrize("name", ["charlm:charlm", "gpt:gpt"])
def test_no_position_sees_what_comes_after_it(name):
    model = build(name).model.eval()
    tokens = torch.arange(32).unsqueeze(0)
    changed = tokens.clone()
    changed[0, 20:] += 1
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :20], after[:, :20])
    assert not torch.allclose(before[:, 20], after[:, 20])


@pytest.mark.parametrize("file", ["digits", "charlm", "gpt", "finetune"])
def test_workloads_can_be_described(file):
    workload = load_workload(str(RECIPES / f"{file}.py"))
    assert workload.name == file
    assert 2 <= len({task.name for task in workload.tasks}) == len(workload.tasks)
    assert all(task.program.reference.startswith(str(RECIPES / file)) for task in workload.tasks)


def test_a_loss_by_chunks_is_the_whole_loss():
    plain, chunked = build("gpt:gpt"), build("gpt:gpt", chunks=5)  # 5 pieces of 128 tokens are not all alike
    losses = [training.loss(training.model, training.batches.draw(0)) for training in (plain, chunked)]
    torch.testing.assert_close(*losses)
    for loss in losses:
        loss.backward()
    for one, other in zip(plain.model.parameters(), chunked.model.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-6)


def test_a_loss_by_chunks_calls_the_head_and_never_holds_all_logits():
    training = build("gpt:gpt", chunks=4)
    seen = []
    training.model.head.register_forward_hook(lambda module, inputs, output: seen.append(output.shape[0]))
    with torch.no_grad():
        training.loss(training.model, training.batches.draw(0))
    assert seen == [4 * 32 // 4] * 4
    training.loss(training.model, training.batches.draw(0)).backward()
    assert seen == [4 * 32 // 4] * (4 + 4 + 4)  # once more in forward and again in backward


@pytest.mark.parametrize("tied", [True, False])
def test_a_gpt_built_fast_is_as_torch_would_have_made_it(monkeypatch, tied):
    gpt = load_file(RECIPES / "gpt.py")
    monkeypatch.setattr(gpt, "TILE", 10_007)  # so that matrices here are larger than the tile too
    size = gpt.Size(depth=2, width=64, heads=2, tied=tied, vocabulary=1024)
    torch.manual_seed(0)
    slow, fast, again = gpt.GPT(size, context=32), gpt.quickly(size, context=32), gpt.quickly(size, context=32)
    assert (fast.head.weight is fast.embedding.weight) == tied
    assert slow.state_dict().keys() == fast.state_dict().keys()
    others = dict(fast.named_parameters())
    for name, parameter in slow.named_parameters():
        assert others[name].std().item() == pytest.approx(parameter.std().item(), rel=0.1)
    rows = fast.embedding.weight
    assert len(rows.unique(dim=0)) == len(rows)
    assert not torch.equal(rows, again.embedding.weight)  # the generator's stand decides, as with torch


def test_a_gpt_built_fast_learns():
    losses = train(build("gpt:gpt", fast=True, fused=True, chunks=2), steps=15)
    assert sum(losses[-3:]) < 0.95 * sum(losses[:3])


def test_gpt_depth_and_clipping_can_be_chosen():
    training = build("gpt:gpt", depth=3, clip=None)
    assert len(training.model.blocks) == 3
    assert training.clip_norm is None
    assert build("gpt:gpt").clip_norm == 1.0
