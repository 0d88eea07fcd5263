"""The study beside the store: found again after a kill, refused with a word on what to install."""

import sys

import optuna
import pytest

import dovetail as dt
from dovetail.control.searching.study_file import check_optuna, open_study, read_study, study_path
from dovetail.describe.searches import Search
from dovetail.vocabulary import DovetailError, InvalidWorkload


def search(**changes: object) -> Search:
    space = {"count": dt.integers(1, 9)}
    given = {"metric": "score", "goal": "max", "steps": 9} | changes
    return Search("dovetail.vocabulary.units:show_bytes", space, **given)


def test_a_missing_optuna_is_named_with_its_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(
        DovetailError, match=r"optuna; it is not installed. Install it: pip install 'dovetail\[optuna\]'"
    ):
        check_optuna()


def test_an_old_optuna_is_named_with_the_version_that_is_needed(monkeypatch):
    monkeypatch.setattr(optuna, "__version__", "3.6.1")
    with pytest.raises(DovetailError, match=r"must have optuna 4.2 or newer; version 3.6.1 is installed"):
        check_optuna()


def test_what_a_killed_writer_left_is_mended(tmp_path):
    study = open_study(search(), home=tmp_path, name="a")
    study.tell(study.ask(), 1.0)
    path = study_path(tmp_path, "a")
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"op_code": 4, "wor')
    path.with_name(f"{path.name}.lock").touch()
    again = open_study(search(), home=tmp_path, name="a")
    assert path.read_bytes().startswith(whole + b'{"op_code":')  # and a whole line at that
    assert again.best_value == 1.0
    assert again.ask().number == 1
    assert len(read_study(tmp_path, "a").trials) == 2


def test_a_sampler_that_goes_on_does_not_draw_the_same_again(tmp_path):
    seeded = [search(sampler=optuna.samplers.RandomSampler(seed=3)) for _ in range(2)]
    drawn = []
    for each in seeded:
        study = open_study(each, home=tmp_path, name="a")
        drawn.append([study.ask().suggest_float("x", 0, 1) for _ in range(3)])
    assert not set(drawn[0]) & set(drawn[1])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"goal": "min"}, "must have the goal that it began with; 'a' was to maximize its metric"),
        ({"sampler": object()}, "sampler must be one of Optuna's, or a dt.Population, got <object"),
        ({"pruner": object()}, "pruner must be one of Optuna's, or a dt.Halving, got <object"),
    ],
)
def test_what_cannot_go_on_is_refused(tmp_path, changes, message):
    open_study(search(), home=tmp_path, name="a")
    with pytest.raises(InvalidWorkload, match=message):
        open_study(search(**changes), home=tmp_path, name="a")


def test_only_a_search_has_a_study(tmp_path):
    with pytest.raises(DovetailError, match=r"only a search has a study; 'b' is none. Make one with dt.search"):
        read_study(tmp_path, "b")
    open_study(search(), home=tmp_path, name="a")
    with pytest.raises(DovetailError, match=r"'b' is none, \['a'\] are"):
        read_study(tmp_path, "b")
