"""What notebooks show is well-formed, and no text of a user's is more than text."""

import xml.etree.ElementTree as tree

from dovetail.control import Result
from dovetail.control.result import TaskResult
from dovetail.vocabulary import Option, Placement, Plan, Program, Schedule, Stop, Task, Workload
from dovetail.vocabulary.notebook_html import MOST_ROWS, html_table

NASTY = "<script>alert('&')</script> \x1b[2J"


def make_task(name: str, **parameters: object) -> Task:
    return Task(
        name=name.replace("/", "|"), program=Program(reference="a.py:f"), parameters=parameters, stop=Stop(steps=9)
    )


def make_plan(*tasks: Task) -> Plan:
    option = Option(families=("f",), technique="resident", kind="cpu", count=1, step_seconds=(1.0,))
    placements = tuple(
        Placement(
            tasks=(task.identity,),
            steps=(9,),
            option=option,
            devices=(f"n0:{n}",),
            start_seconds=n,
            duration_seconds=9.0,
        )
        for n, task in enumerate(tasks)
    )
    workload = Workload(name="w", tasks=tasks)
    return Plan(schedule=Schedule(placements=placements), workload=workload, explanation=(NASTY, "hunter22 waits"))


def check(html: str) -> None:
    tree.fromstring(f"<div>{html}</div>")
    assert "<script" not in html
    assert "\x1b" not in html
    assert "hunter22" not in html


def test_a_plan_shows_bars_rows_and_reasons():
    tasks = make_task(NASTY), make_task("run hunter22", pwd="hunter22")
    html = make_plan(*tasks)._repr_html_()
    check(html)
    assert html.count("<rect") == 2
    assert html.count("<tr>") == 3
    assert "&lt;script&gt;" in html
    assert "*** waits" in html


def test_a_plan_of_nothing_shows_itself_too():
    check(Plan()._repr_html_())


def test_a_result_shows_its_tasks(tmp_path):
    tasks = tuple(
        TaskResult(
            task=task,
            status="failed",
            step=5,
            reason=f"hunter22 {NASTY}",
            metrics={NASTY: 0.5},
            history={},
            home=tmp_path,
        )
        for task in (make_task(NASTY), make_task("run hunter22", pwd="hunter22"))
    )
    warnings = (f"hunter22 {NASTY}",)
    result = Result(
        workload="w", tasks=tasks, makespan_seconds=3.0, planned_seconds=2.0, warnings=warnings, home=tmp_path
    )
    html = result._repr_html_()
    check(html)
    assert "planned 2.0 s, took 3.0 s" in html
    assert "failed" in html


def test_of_many_rows_the_first_are_shown():
    html = html_table(["n"], [[n] for n in range(MOST_ROWS + 5)])
    check(html)
    assert html.count("<tr>") == MOST_ROWS + 2
    assert "and 5 more" in html
