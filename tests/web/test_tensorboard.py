"""What TensorBoard reads back is what the store holds."""

import math
import sys
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from dovetail.cli.app import app
from dovetail.store import Point, Store
from dovetail.vocabulary import DovetailError, read_event
from dovetail.web.tensorboard import check_export, run_folders, write_tensorboard
from tests.web.synthetic import fill_many, fill_sweep, make_task


@pytest.fixture
def store():
    with Store(None, write=True) as opened:
        yield opened


def read_back(folder: Path) -> dict[str, list[tuple[int, float, float]]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TensorBoard's own, on import
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {
        tag: [(one.step, one.value, one.wall_time) for one in accumulator.Scalars(tag)]
        for tag in accumulator.Tags()["scalars"]
    }


def test_scalars_steps_and_times_come_back(store: Store, tmp_path: Path):
    tasks = fill_sweep(store)
    count = write_tensorboard(store, tmp_path)
    assert count == sum(len(store.points(task.identity)) for task in tasks)
    for task in tasks[:4]:
        found = read_back(tmp_path / task.name)
        for name in ("loss", "accuracy"):
            stored = store.points(task.identity, name=name)
            assert [step for step, _, _ in found[name]] == [point.step for point in stored]
            assert [at for _, _, at in found[name]] == [point.at_seconds for point in stored]
            values = [point.value for point in stored]
            assert [value for _, value, _ in found[name]] == pytest.approx(values, rel=1e-6, nan_ok=True)


def test_nan_stays_nan(store: Store, tmp_path: Path):
    task = make_task("a")
    store.add(
        tasks=[("w", task)], points=[Point(task=task.identity, name="loss", step=1, value=math.nan, at_seconds=5)]
    )
    write_tensorboard(store, tmp_path)
    ((step, value, at),) = read_back(tmp_path / "a")["loss"]
    assert (step, at, math.isnan(value)) == (1, 5.0, True)


def test_exporting_twice_does_not_double(store: Store, tmp_path: Path):
    fill_many(store, count=2)
    assert write_tensorboard(store, tmp_path) == write_tensorboard(store, tmp_path) == 6
    assert len(read_back(tmp_path / "many-00000")["loss"]) == 3
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 2


def test_one_workload_only(store: Store, tmp_path: Path):
    fill_sweep(store)
    fill_many(store, count=2)
    assert write_tensorboard(store, tmp_path, workload="many") == 6


def test_tasks_without_points_have_no_run(store: Store, tmp_path: Path):
    task = make_task("a")
    store.add(tasks=[("w", task)], events=[read_event("described", task=task.identity, at_seconds=0.0)])
    assert write_tensorboard(store, tmp_path / "out") == 0
    assert not (tmp_path / "out").exists()


def test_without_the_package_it_says_what_to_install(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    with pytest.raises(DovetailError, match=r"pip install 'dovetail\[tensorboard\]'"):
        write_tensorboard(store, tmp_path)


def test_a_directory_that_cannot_be_written_is_said(store: Store, tmp_path: Path):
    fill_many(store, count=1)
    (tmp_path / "file").write_text("")
    with pytest.raises(DovetailError, match="must be one that this user can write"):
        write_tensorboard(store, tmp_path / "file")


NAMES = st.text(min_size=1, max_size=300).filter(lambda name: "/" not in name and not name.startswith("."))


@given(st.lists(st.tuples(NAMES, st.integers(0, 3)), max_size=8))
def test_folders_are_safe_and_differ(cases: list[tuple[str, int]]):
    tasks = {task.identity: task for task in (make_task(name, width=width) for name, width in cases)}
    folders = run_folders(tasks.values())
    assert folders.keys() == tasks.keys()
    assert len({folder.lower() for folder in folders.values()}) == len(tasks)
    for folder in folders.values():
        assert len(folder) <= 110
        assert not set(folder) & set('/\\:*?"<>|\0\n')


def test_no_secret_is_in_the_name_of_a_scalar_or_a_folder(store: Store, tmp_path: Path):
    task = make_task("run hunter22", pwd="hunter22")
    points = [Point(task=task.identity, name="loss hunter22", step=1, value=1.0, at_seconds=5)]
    store.add(tasks=[("w", task)], points=points)
    write_tensorboard(store, tmp_path)
    (folder,) = tmp_path.iterdir()
    assert "hunter22" not in folder.name
    assert list(read_back(folder)) == ["loss ***"]


def test_an_export_that_cannot_be_is_refused_beforehand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    check_export(tmp_path / "new")
    (tmp_path / "file").touch()
    with pytest.raises(DovetailError, match="directory must be one that this user can write"):
        check_export(tmp_path / "file")
    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorboard"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(DovetailError, match=r"pip install 'dovetail\[tensorboard\]'"):
        check_export(tmp_path / "other")


def test_a_run_without_the_package_is_refused_before_anything_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    for name in [name for name in sys.modules if name.startswith("tensorboard.")]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "sweep.py").write_text("raise AssertionError('it was read')")
    given = ["run", str(tmp_path / "sweep.py"), "--store", str(tmp_path / "s"), "--tensorboard", str(tmp_path / "t")]
    found = CliRunner().invoke(app, given)
    assert found.exit_code == 2
    assert "pip install 'dovetail[tensorboard]'" in found.output
    assert not (tmp_path / "s").exists()
