"""The page of a race: one file, every run in it, nothing of the user's that could run."""

import pytest

from dovetail.web.race_page import write_race
from tests.metrics.race.planted import judge, make_task, straight_run
from tests.web.test_report import Page

NASTY = "<script>alert(1)<∕script>"


def race(name="net"):
    tasks = [make_task(each, seed) for each in (name, "slow") for seed in range(3)]
    events = [
        event
        for task in tasks
        for event in straight_run(
            task, steps=200 if task.program.function == "slow" else 100, step_seconds=0.1, arrives=task.seed != 2
        )
    ]
    return judge(events, tasks)


def test_one_file_has_all_of_it(tmp_path):
    text = write_race(race().record(), tmp_path / "race.html").read_text(encoding="utf-8")
    data = Page(text).data["race"]
    assert data["level"] == 0.9
    assert [each["name"] for each in data["contestants"]] == ["net", "slow"]
    runs = data["contestants"][0]["runs"]
    assert [run["crossing"] is not None for run in runs] == [True, True, False]
    assert runs[0]["crossing"]["mlperf"] == pytest.approx(12.0)
    assert "http" not in {name for name, given in Page(text).tags for word in given if word in ("src", "href")}


def test_names_run_nothing(tmp_path):
    text = write_race(race(NASTY).record(), tmp_path / "race.html").read_text(encoding="utf-8")
    assert NASTY not in text


@pytest.mark.process
def test_a_browser_draws_it_by_both_clocks_in_light_and_dark(tmp_path, look):
    path = write_race(race().record(), tmp_path / "race.html")
    for scheme in ("light", "dark"):
        sight = look(path.as_uri(), color_scheme=scheme)
        page = sight.page
        page.goto(sight.address)
        page.locator("select[name=clock]").select_option("dawnbench")
        page.locator("select[name=over]").select_option("steps")
        assert page.locator("canvas").count() == 1
        assert page.get_by_role("region", name="Figures").get_by_role("row").count() == 3
