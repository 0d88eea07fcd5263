"""Searches as values: what each means, and what is refused with a word on what to do."""

import pytest

import dovetail as dt
from dovetail.describe import load_described, load_workload
from dovetail.describe.searches import Search
from dovetail.vocabulary import Halving, InvalidWorkload, Population

RATE = dt.log_uniform(1e-4, 1e-1)


def program(width: int = 32, learning_rate: float = 1e-2) -> None:
    """A program that nobody builds here."""


def search(**changes: object) -> Search:
    space = changes.pop("space", {"learning_rate": RATE})
    return Search(program, space, **({"metric": "accuracy", "steps": 90, "count": 9} | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"count": 0}, "a search must have count of at least 1, got 0"),
        ({"at_once": 0}, "a search must have at_once of at least 1, got 0"),
        ({"space": {"learning_rat": RATE}}, "not 'learning_rat'. Did you mean 'learning_rate'?"),
        ({"space": {}}, "space must have at least one parameter, got none"),
        ({"space": 3}, "must be a dict of parameters or a function of a trial, got 3"),
        ({"space": {"width": object()}}, "'width' is of type object"),
        ({"space": {"width": dt.when(3, depth=2)}}, "'depth' is none"),
        (
            {"metric": "speed"},
            "whether more of 'speed' is better; its name does not say. Give goal='max' or goal='min'",
        ),
        ({"goal": "least"}, "goal must be 'max' or 'min', got 'least'"),
        ({"steps": None}, "must stop after a number of steps or of epochs"),
        ({"sampler": "tpee"}, "sampler must be one of tpe, random, population, or an object of Optuna's, got 'tpee'"),
        ({"pruner": "hyper"}, "pruner must be one of asha, halving, median, or an object of Optuna's, got 'hyper'"),
        ({"pruner": "asha", "steps": None, "epochs": 3}, "Give dt.Halving(metric=..., first_steps=...) instead"),
        ({"pruner": Halving(metric="loss", first_steps=3)}, "must halve by what it searches for, 'accuracy' (max)"),
        ({"sampler": Population(every_steps=9), "pruner": "asha"}, "must have a count of at least 2 and no pruner"),
        ({"sampler": Population(every_steps=9), "count": 1}, "must have a count of at least 2 and no pruner"),
        ({"objective": "cheap"}, "objective must be one of"),
    ],
)
def test_what_cannot_be_is_refused(changes, message):
    with pytest.raises(InvalidWorkload) as refused:
        search(**changes)
    assert message in str(refused.value)


def test_a_program_by_name_is_asked_for_its_parameters_too(tmp_path):
    (tmp_path / "model.py").write_text("def model(width=3):\n    raise SystemExit\n")
    with pytest.raises(InvalidWorkload, match=r"not 'widht'. Did you mean 'width'"):
        Search(f"{tmp_path}/model.py:model", {"widht": [1, 2]}, metric="loss", steps=9)


def test_a_function_of_a_trial_is_checked_when_it_has_given_parameters():
    found = search(space=lambda trial: {"widht": 3})
    with pytest.raises(InvalidWorkload, match="Did you mean 'width'"):
        found.task(0, {"widht": 3})


def test_names_stand_for_rules():
    assert search(pruner="asha").pruner == Halving(metric="accuracy", first_steps=10, asynchronous=True)
    assert search(pruner="halving").workload().halving == Halving(metric="accuracy", first_steps=10)
    assert search(sampler="population").workload().population == Population(every_steps=9)


def test_plans_look_for_the_target_where_there_is_one():
    assert search().workload().objective == "makespan"
    assert search(at_least=0.9).workload().objective == "target:chance=0.1"
    assert search(at_least=0.9, objective="mean").workload().objective == "mean"


def test_tasks_are_called_by_what_was_chosen_for_them():
    found = search(space={"learning_rate": RATE, "width": 64}).task(7, {"learning_rate": 0.012345, "width": 64})
    assert found.name == "program #7 learning_rate=0.01235"
    assert found.parameters == {"learning_rate": 0.012345, "width": 64}


def test_a_search_in_a_file_has_the_files_name_and_only_run_takes_it(tmp_path):
    file = tmp_path / "look.py"
    file.write_text(
        "import dovetail as dt\n\n\ndef f(width=3):\n    pass\n\n\n"
        "search = dt.Search(f, {'width': dt.integers(1, 9)}, metric='loss', steps=9)\n"
    )
    assert load_described(str(file)).name == "look"
    assert load_described(f"{file}:search").name == "look:search"
    with pytest.raises(InvalidWorkload, match="It has a search, whose tasks come as results do"):
        load_workload(str(file))
