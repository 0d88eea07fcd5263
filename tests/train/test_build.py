import pytest
import torch

from dovetail.describe import program
from dovetail.train import Training
from dovetail.train.build import build
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
