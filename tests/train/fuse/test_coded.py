"""Members of a stack whose moments are in fewer bits are updated, bit by bit, as each would be alone."""

import copy

import pytest
import torch
from torch import nn

from dovetail.train import FUSE, RESIDENT, SessionMember, Training
from dovetail.train.fuse.stack import Stack
from dovetail.train.numeric import open_session

CPU = torch.device("cpu")
MEMBERS = 3


def build(number: int, optimizer: str) -> Training:
    torch.manual_seed(number)
    model = nn.Sequential(nn.Linear(64, 80), nn.Tanh(), nn.Linear(80, 64))
    batches = [torch.randn(8, 64, generator=torch.Generator().manual_seed(each)) for each in range(3)]
    rate = 1e-2 / (number + 1)
    made = (
        torch.optim.AdamW(model.parameters(), lr=rate)
        if optimizer == "adamw"
        else torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    )
    return Training(model=model, batches=batches, loss=reconstruction, optimizer=made, clip_norm=1.0)


def reconstruction(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return ((model(batch) - batch) ** 2).mean()


def opened(technique, numbers, name, optimizer):
    members = [SessionMember(training=build(number, optimizer), seed=number) for number in numbers]
    return open_session(technique, members, device=CPU, threads=1, knobs={"approximate": name})


def kept(session, member=0):
    return {key: tensor.clone() for key, tensor in session.state(member).tensors.items() if "/" in key}


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("name", ["state-8bit", "state-bf16"])
def test_updates_are_those_of_a_member_alone(name, optimizer, monkeypatch):
    """From the stack's own gradients, which are a member's up to the order of sums."""
    fused, seen = opened(FUSE, range(MEMBERS), name, optimizer), []
    step_each = Stack._step_each
    monkeypatch.setattr(Stack, "_step_each", lambda s, g: (seen.append([each.clone() for each in g]), step_each(s, g)))
    alone = [build(number, optimizer) for number in range(MEMBERS)]
    apart = [open_session(RESIDENT, [SessionMember(training=each, seed=number)], device=CPU, threads=1,
                          knobs={"approximate": name}) for number, each in enumerate(alone)]  # fmt: skip
    for _ in range(4):
        fused.advance(range(MEMBERS))
        slabs = fused._stack._slabs
        for row, training in enumerate(alone):
            for slab, gradient in zip(slabs, seen[-1], strict=True):
                for each in slab.shapes:
                    training.model.get_parameter(each).grad = slab.view(gradient, each, row=row).clone()
            training.optimizer.step()
    for row, session in enumerate(apart):
        mine, theirs = kept(fused, row), kept(session)
        names = [each for each in theirs if each.startswith(("model/", "optimizer/"))]
        assert any(theirs[each].dtype in (torch.uint8, torch.bfloat16) for each in names)
        assert all(torch.equal(mine[each], theirs[each]) for each in names)
    fused.close()


@pytest.mark.parametrize("name", ["state-8bit", "state-bf16"])
def test_members_come_and_go_with_every_bit(name):
    """One that leaves the stack, goes on alone, and comes back has the state that it had."""
    fused = opened(FUSE, range(MEMBERS), name, "adamw")
    for _ in range(2):
        fused.advance(range(MEMBERS))
    state = copy.deepcopy(fused.state(1))
    alone = opened(RESIDENT, [1], name, "adamw")
    alone.load(state)
    assert all(torch.equal(alone.state().tensors[each], tensor) for each, tensor in state.tensors.items())
    fused.advance([0, 2])  # stacked anew, without it
    assert all(torch.equal(fused.state(1).tensors[each], tensor) for each, tensor in state.tensors.items())
    (loss,) = alone.advance()
    back = opened(FUSE, range(MEMBERS), name, "adamw")
    back.load(state, 1)
    again = back.advance(range(MEMBERS))[1]
    assert float(again.loss) == pytest.approx(float(loss.loss), rel=1e-4)
    for session in (fused, alone, back):
        session.close()
