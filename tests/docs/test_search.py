"""The page about searches: its program trains and resumes exactly, and its searches give the tasks they speak of."""

import re
from pathlib import Path

import optuna

from dovetail.control.searching.suggesting import suggest_parameters
from dovetail.describe import load_described
from tests.docs.test_tutorial import check

TEXT = (Path(__file__).parents[2] / "docs" / "search.md").read_text()


def test_its_searches_give_tasks_that_train_and_resume(tmp_path):
    first, *others = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    for number, more in enumerate(["", *others]):
        file = tmp_path / f"search{number}.py"
        file.write_text(first + more)
        search = load_described(str(file))
        trial = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=number)).ask()
        task = search.task(0, suggest_parameters(search, trial))
        if not number:  # the others are of the same program
            check(task)
    assert search.workload().population.every_steps == 30
