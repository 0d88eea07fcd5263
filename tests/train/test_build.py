import contextlib
import random

import pytest
import torch

from dovetail.describe import program
from dovetail.feeds import Cursor
from dovetail.train import RESIDENT, SessionMember, Training
from dovetail.train.build import KEPT_BYTES, Builder, build
from dovetail.train.isolation import Isolation
from dovetail.vocabulary import InvalidWorkload, Program, ProgramError, Stop, Task


def weights(width=3, fail=""):
    if fail:
        raise ValueError(fail)
    model = torch.nn.Linear(width, 1)
    return Training(
        model=model,
        batches=[],
        loss=lambda model, batch: model(batch).mean(),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    )


def layered(sizes, options):
    sizes.append(options.setdefault("out", 1))  # as a program may with a list and a dict of its own
    return weights(width=len(sizes))


def nothing():
    return None


def task(function="weights", **parameters):
    program = Program(reference=f"tests.train.test_build:{function}")
    return Task(name="mine", program=program, parameters=parameters, stop=Stop(steps=1))


def test_weights_depend_on_the_seed_alone():
    one = build(task(seed=1)).model.weight
    torch.rand(5)
    assert torch.equal(build(task(seed=1)).model.weight, one)
    assert not torch.equal(build(task(seed=2)).model.weight, one)


def test_lists_and_dicts_arrive_as_lists_and_dicts():
    found = task("layered", sizes=[[1], 2], options={"in": [3]})
    assert build(found).model.in_features == 3
    assert build(found).model.in_features == 3, "what a program does to its list stays with it"


@pytest.mark.parametrize(
    ("found", "error", "message"),
    [
        (
            task(fail="no data"),
            ProgramError,
            "task 'mine': its program must build a Training; it raised ValueError: no",
        ),
        (task("nothing"), ProgramError, "task 'mine': its program must return a dovetail.Training, got NoneType"),
        (task("weigths"), ProgramError, "task 'mine': .*must define a function 'weigths'.*did you mean 'weights'"),
        (task(widht=2), InvalidWorkload, r"task 'mine': program 'weights' must take every parameter.*'width'"),
    ],
)
def test_what_cannot_be_built_names_its_task(found, error, message):
    with pytest.raises(error, match=message):
        build(found)


def test_code_that_was_edited_since_it_was_described_is_not_taken_for_what_it_was(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("from tests.train.test_build import weights as made\n\ndef f():\n    return made(3)\n")
    found = Task(name="mine", program=program(f"{file}:f"), stop=Stop(steps=1))
    assert build(found).model.weight.shape == (1, 3)
    file.write_text("from tests.train.test_build import weights as made\n\ndef f():\n    return made(3)  # the same\n")
    assert build(found).model.weight.shape == (1, 3)
    file.write_text("from tests.train.test_build import weights as made\n\ndef f():\n    return made(4)\n")
    with pytest.raises(ProgramError, match=r"task 'mine': the code of 'f' must stay .* Run the workload again"):
        build(found)


PROGRAMS = """
import os, random
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset
from dovetail.train import Training

BUILT = []

class Own(Dataset):
    def __init__(self):
        self.asked = 0
    def __len__(self):
        return 8
    def __getitem__(self, index):
        self.asked += 1
        return torch.full((4,), float(self.asked))

def trained(batches, loss=None):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
    # Its own draws go on where building left the generator.
    loss = loss or (lambda model, batch: model(torch.as_tensor(batch[0])).square().mean() * (1 + random.random()))
    return Training(model=model, batches=batches, loss=loss, optimizer=torch.optim.Adam(model.parameters()))

def rows():
    return TensorDataset(torch.randn(8, 4))

def plain(): return trained(DataLoader(rows(), batch_size=4, shuffle=True))
def listed(): return trained([(torch.randn(4, 4),) for _ in range(3)])
def counted():
    BUILT.append(1)
    return plain()
def elsewhere():
    os.environ["MINE"] = "1"
    return plain()
def generated(): return trained(DataLoader(rows(), shuffle=True, generator=torch.Generator().manual_seed(1)))
def owned(): return trained(DataLoader(Own(), batch_size=4), loss=lambda model, batch: model(batch).mean())
"""


@pytest.fixture
def builder(tmp_path):
    (tmp_path / "kept_programs.py").write_text(PROGRAMS)
    found = Builder(home=tmp_path, isolation=Isolation())
    yield found
    found.isolation.reset()


def inspected(builder, tmp_path, function):
    found = Task(name=function, program=program(f"{tmp_path / 'kept_programs.py'}:{function}"), stop=Stop(steps=1))
    with builder.inspecting(found) as training:
        Cursor(training.batches, before_draw=lambda epoch, index: None).take(1)
    return found, training


def after_steps(training):
    with contextlib.closing(
        RESIDENT.open([SessionMember(training=training, seed=0)], device=torch.device("cpu"), threads=1)
    ) as session:
        losses = [float(session.advance()[0].loss) for _ in range(5)]
        return losses, {name: value.clone() for name, value in session.state().tensors.items()}


@pytest.mark.parametrize("function", ["plain", "listed"])
def test_what_was_only_looked_at_is_trained_as_if_built_anew(builder, tmp_path, function):
    found, looked_at = inspected(builder, tmp_path, function)
    random.seed(99)
    torch.manual_seed(99)
    taken = builder.take(found)
    assert taken is looked_at
    losses, tensors = after_steps(taken)
    anew = builder.take(found)
    assert anew is not looked_at
    expected_losses, expected = after_steps(anew)
    assert losses == expected_losses
    assert tensors.keys() == expected.keys()
    assert all(torch.equal(tensors[name], expected[name]) for name in expected)


@pytest.mark.parametrize("function", ["counted", "elsewhere", "generated", "owned"])
def test_what_looking_or_building_may_have_changed_is_built_anew(builder, tmp_path, function):
    found, looked_at = inspected(builder, tmp_path, function)
    assert builder.take(found) is not looked_at


def test_no_more_is_kept_than_there_is_room_for(builder, tmp_path, monkeypatch):
    sizes = iter([0, KEPT_BYTES["cpu"] + 1])
    monkeypatch.setattr("dovetail.train.build._process_bytes", lambda: next(sizes))
    found, looked_at = inspected(builder, tmp_path, "plain")
    assert builder.take(found) is not looked_at


def test_what_was_taken_is_looked_for_only_where_it_is_not_gone_by_itself(builder, tmp_path, monkeypatch):
    monkeypatch.setattr("dovetail.train.build._process_bytes", lambda: 0)
    monkeypatch.setattr("dovetail.train.build._TAKEN_BYTES", 4 * 100 - 1)
    found, looked_at = inspected(builder, tmp_path, "plain")
    taken = builder.take(found)
    assert sum(each.nbytes for each in taken.model.parameters()) == 100
    assert builder.is_full_of_taken
    del taken, looked_at
    assert not builder.is_full_of_taken

    found, looked_at = inspected(builder, tmp_path, "plain")
    looked_at.optimizer.scheduler = torch.optim.lr_scheduler.StepLR(looked_at.optimizer, 1)  # each has the other
    builder.take(found)
    del looked_at
    assert builder.is_full_of_taken
    monkeypatch.setattr("dovetail.train.build._TAKEN_BYTES", 4 * 200)
    assert not builder.is_full_of_taken
    monkeypatch.setattr("dovetail.train.build._TAKEN_COUNT", 1)
    assert builder.is_full_of_taken
    builder.forget_taken()
    assert not builder.is_full_of_taken


def test_code_that_was_edited_since_it_was_looked_at_is_refused(builder, tmp_path):
    found, _ = inspected(builder, tmp_path, "plain")
    (tmp_path / "kept_programs.py").write_text(PROGRAMS.replace("randn(8, 4)", "randn(16, 4)"))
    with pytest.raises(ProgramError, match="must stay"):
        builder.take(found)


def test_torch_is_deterministic_where_that_is_asked_unless_a_program_says_otherwise():
    isolation = Isolation(deterministic=True)
    with isolation.loading("plain.py"):
        pass
    assert torch.are_deterministic_algorithms_enabled()
    with isolation.loading("quick.py"):
        torch.use_deterministic_algorithms(False)
    assert not torch.are_deterministic_algorithms_enabled()
    isolation.reset()
    assert torch.are_deterministic_algorithms_enabled()
    Isolation().reset()  # of the next run
    assert not torch.are_deterministic_algorithms_enabled()
