"""In a process of its own: in this one something has imported the compiler already, or will."""

import subprocess
import sys

import pytest

SCRIPT = """
import sys

import torch

from dovetail.profile.flow import Flow
from dovetail.train.build import build
from dovetail.train.postponed_compiler import COMPILER
from dovetail.vocabulary import Program, Stop, Task

for _ in range(2):
    build(Task(name="a", program=Program(reference="tests.engines.programs:steady"), stop=Stop(steps=1)))
MADE_OTHERWISE = {"Optimizer", "LBFGS", "SparseAdam"}
OPTIMIZERS = [each for name, each in vars(torch.optim).items() if isinstance(each, type) and name not in MADE_OTHERWISE]


def train(made):
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 2, bias=False)
    optimizer = made(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for _ in range(3):
        optimizer.zero_grad()
        with Flow():
            loss = model(torch.ones(4, 2)).square().mean()
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.load_state_dict(optimizer.state_dict())
    assert not any(weight.requires_grad for state in optimizer.state.values() for weight in state.values())
    return model.weight.tolist()


without = [train(made) for made in OPTIMIZERS]
assert len(without) > 10 and COMPILER not in sys.modules
import torch._dynamo

assert [train(made) for made in OPTIMIZERS] == without
marked = torch.optim.Optimizer.zero_grad.__wrapped__
assert hasattr(marked.__wrapped__, "__dynamo_disable")  # as torch leaves it where its own mark was asked
"""


@pytest.mark.process
def test_optimizers_step_without_it_as_with_it_and_are_marked_once_it_is_there():
    subprocess.run([sys.executable, "-c", SCRIPT], check=True, timeout=300)
