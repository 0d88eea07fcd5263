"""What TensorBoard reads back is what the store holds."""

import warnings
from pathlib import Path

import pytest

from dovetail.store import Store
from dovetail.testing.trackers import START, TrackerConformance, add_points, begin_attempt, finish_task
from dovetail.trackers.tensorboard import FILE
from dovetail.vocabulary import Plan, Schedule

pytestmark = pytest.mark.filterwarnings("ignore")  # TensorBoard's own, on import


def accumulate(folder: Path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        return EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0}).Reload()


def read_scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    found = accumulate(folder)
    return {tag: [(each.step, each.value) for each in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


class TestTensorboard(TrackerConformance):
    def address(self, folder):
        return f"tensorboard:{folder}/runs"

    def read(self, folder):
        return {
            each.name: {
                tag: [(step, pytest.approx(value, rel=1e-6, nan_ok=True)) for step, value in points]
                if "odd" not in tag
                else points
                for tag, points in read_scalars(each).items()
            }
            for each in (folder / "runs").iterdir()
            if each.is_dir()
        }

    def statuses(self, folder):
        from tensorboard.plugins.hparams import metadata

        found = {}
        for each in ("a", "b"):
            content = accumulate(folder / "runs" / each).SummaryMetadata(metadata.SESSION_END_INFO_TAG)
            found[each] = metadata.parse_session_end_info_plugin_data(content.plugin_data.content).status
        return found

    def test_parameters_are_for_the_hparams_tab(self, home, tmp_path):
        from tensorboard.plugins.hparams import metadata

        self.send(home, tmp_path)
        content = accumulate(tmp_path / "runs" / "b").SummaryMetadata(metadata.SESSION_START_INFO_TAG)
        found = metadata.parse_session_start_info_plugin_data(content.plugin_data.content).hparams
        assert (found["width"].number_value, found["pwd"].string_value) == (8, "***")

    def test_the_plan_is_told_as_text(self, home, tmp_path):
        with Store(home, write=True) as store:
            store.add_plan(Plan(schedule=Schedule(placements=())), workload="sweep", at_seconds=START)
        self.send(home, tmp_path)
        (told,) = accumulate(tmp_path / "runs").Tensors("plan.txt")
        assert b"makespan 0" in told.tensor_proto.string_val[0]

    def test_what_a_killed_process_left_half_is_cut_off(self, home, tmp_path):
        begin_attempt(home, "a")
        add_points(home, "a", range(1, 11))
        self.send(home, tmp_path)
        with (tmp_path / "runs" / "a" / FILE).open("ab") as file:
            file.write(b"half a record")
        add_points(home, "a", range(11, 21))
        finish_task(home, "a", step=20)
        self.send(home, tmp_path)
        assert [step for step, _ in self.read(tmp_path)["a"]["train/loss"]] == list(range(1, 21))

    def test_files_that_were_removed_are_written_again(self, home, tmp_path):
        begin_attempt(home, "a")
        add_points(home, "a", range(1, 11))
        self.send(home, tmp_path)
        (tmp_path / "runs" / "a" / FILE).unlink()
        add_points(home, "a", range(11, 13))
        finish_task(home, "a", step=12)
        self.send(home, tmp_path)
        assert [step for step, _ in self.read(tmp_path)["a"]["train/loss"]] == list(range(1, 13))

    def test_runs_of_another_store_are_left_alone(self, home, tmp_path):
        add_points(home, "a", range(1, 3))
        self.send(home, tmp_path)
        other = tmp_path / "other"
        with Store(home) as store, Store(other, write=True) as written:
            written.add(tasks=store.tasks(), points=[])
        add_points(other, "a", range(1, 6))
        self.send(other, tmp_path)
        found = self.read(tmp_path)
        assert len(found["a"]["train/loss"]) == 2
        assert [len(curves["train/loss"]) for name, curves in found.items() if name.startswith("a-")] == [5]
