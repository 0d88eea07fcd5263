"""Readers of published traces and tables, and what they refuse."""

import json
from pathlib import Path

import pytest

from dovetail.describe.traces import Rates, generate, read_philly, read_rates, read_trace
from dovetail.vocabulary import InvalidWorkload

TABLE = {
    "v100": {
        "('LM', 1)": {"null": 4.0, "('LM', 1)": [3.0, 3.0], "('GAN', 1)": [2.0, 1.0]},
        "('GAN', 1)": {"null": 2.0, "('LM', 1)": [1.0, 2.0]},
        "('LM', 2)": {"null": 7.0},
    },
    "k80": {"('LM', 1)": {"null": 1.0, "('LM', 1)": [0.0, 0.0]}, "('GAN', 1)": {"null": 0.0}},
}
GAVEL = Path(__file__).parents[3] / "shared" / "data" / "gavel"
LINE = "LM\tpython train.py\tlm\t--steps\t1\t500\t2\t1\t-1.000000\t36"


@pytest.fixture
def rates(tmp_path: Path) -> Rates:
    path = tmp_path / "rates.json"
    path.write_text(json.dumps(TABLE))
    return read_rates(path)


def trace(folder: Path, *lines: str) -> Path:
    path = folder / "one.trace"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_what_does_not_fit_is_absent(rates: Rates) -> None:
    assert rates.alone["k80"] == {("LM", 1): 1.0}
    assert rates.pairs == {
        "v100": {(("LM", 1), ("LM", 1)): (3.0, 3.0), (("GAN", 1), ("LM", 1)): (1.0, 2.0)},
        "k80": {},
    }


def test_options_alone_in_pairs_and_with_free_counts(rates: Rates) -> None:
    assert len(rates.options(["v100", "k80"])) == 4
    pairs = [o for o in rates.options(["v100"], packed=True) if len(o.families) == 2]
    assert [o.families for o in pairs] == [("LM x1", "LM x1"), ("GAN x1", "LM x1")]
    counts = {o.count for o in rates.options(["v100"], free_counts=True) if o.families == ("LM",)}
    assert counts == {1, 2}
    with pytest.raises(InvalidWorkload, match=r"among those measured, \['k80', 'v100'\]; got 'tpu'"):
        rates.options(["tpu"])


def test_a_trace_is_read(rates: Rates, tmp_path: Path) -> None:
    (arrival,) = read_trace(trace(tmp_path, LINE), rates=rates)
    assert (arrival.family, arrival.steps, arrival.at_seconds) == ("LM x2", 500, 36.0)
    assert arrival.deadline_seconds == float("inf")
    (arrival,) = read_trace(trace(tmp_path, LINE), rates=rates, free_counts=True)
    assert arrival.family == "LM"


def test_a_trace_of_seven_fields_is_read(rates: Rates, tmp_path: Path) -> None:
    """The format of Gavel's `msr` traces: no directory, no weight, no deadline; the count is last."""
    line = "LM\tcd %s/lm && python train.py\t--steps\t1\t500\t36.000000\t2"
    (arrival,) = read_trace(trace(tmp_path, line), rates=rates)
    assert (arrival.family, arrival.steps, arrival.at_seconds) == ("LM x2", 500, 36.0)
    assert (arrival.weight, arrival.deadline_seconds, arrival.rounded) == (1.0, float("inf"), False)


def test_counts_of_seven_field_traces_are_rounded_down_to_measured_ones(rates: Rates, tmp_path: Path) -> None:
    lines = ("LM\tx\t--steps\t1\t500\t0\t64", "GAN\tx\t--steps\t1\t500\t9\t8", "GAN\tx\t--steps\t1\t500\t9\t1")
    found = read_trace(trace(tmp_path, *lines), rates=rates)
    assert [(arrival.family, arrival.rounded) for arrival in found] == [
        ("LM x2", True),
        ("GAN x1", True),
        ("GAN x1", False),
    ]
    with pytest.raises(InvalidWorkload, match=r"line 1 of .*'Diffusion' on 2 devices is not"):
        read_trace(trace(tmp_path, "Diffusion\tx\t-n\t1\t5\t0\t2"), rates=rates)


@pytest.mark.parametrize("name", ["795a4c", "925e2b", "e13805", "ee9e8c"])
def test_gavels_own_seven_field_traces_are_read(name: str) -> None:
    if not GAVEL.exists():
        pytest.skip("Gavel's traces must lie in ../shared/data beside the repository; they do not.")
    path = GAVEL / "traces" / "msr_seed0" / f"{name}.trace"
    found = read_trace(path, rates=read_rates(GAVEL / "simulation_throughputs.json"))
    assert len(found) == len(path.read_text().splitlines())
    assert [arrival.at_seconds for arrival in found] == sorted(arrival.at_seconds for arrival in found)


def test_a_trace_with_an_unknown_model(rates: Rates, tmp_path: Path) -> None:
    strange = LINE.replace("LM\t", "Diffusion\t", 1)
    with pytest.raises(InvalidWorkload, match=r"line 2 of .*'Diffusion' on 2 devices is not; known among 'GAN', 'LM'"):
        read_trace(trace(tmp_path, LINE, strange), rates=rates)
    wide = LINE.replace("\t2\t1\t", "\t16\t1\t")
    with pytest.raises(InvalidWorkload, match=r"'LM' on 16 devices is not; known on \[1, 2\] devices"):
        read_trace(trace(tmp_path, wide), rates=rates)


def test_a_line_that_is_cut_short(rates: Rates, tmp_path: Path) -> None:
    with pytest.raises(InvalidWorkload, match=r"line 1 of .* must have 7 or 10 fields between tabs, found 3"):
        read_trace(trace(tmp_path, "LM\tx\ty"), rates=rates)


def test_a_table_with_rows_of_another_form(tmp_path: Path) -> None:
    path = tmp_path / "rates.json"
    path.write_text(json.dumps({"v100": {"LM": {"null": 1.0}}}))
    with pytest.raises(InvalidWorkload, match=r"must name its rows .* found 'LM'"):
        read_rates(path)
    path.write_text(json.dumps({"v100": {"('LM', 1)": {"null": -1.0}}}))
    with pytest.raises(InvalidWorkload, match=r"rates in .* must be at least 0, \('LM', 1\) has -1.0"):
        read_rates(path)


def test_philly_jobs_come_in_order_with_steps_that_fill_their_time(rates: Rates, tmp_path: Path) -> None:
    path = tmp_path / "philly.csv"
    head = "timestamp,duration,num_gpus,gpu_time,cluster\n"
    path.write_text(head + "2017-10-09 07:00:10,100.0,5,500,a\n2017-10-09 07:00:00,10.0,1,10,a\n")
    first, second = read_philly(path, rates=rates, kind="v100", tasks=2)
    assert (first.at_seconds, second.at_seconds) == (0.0, 10.0)
    assert (second.family, second.steps) == ("LM x2", 700)
    path.write_text(head + "yesterday,1,1,1,a\n")
    with pytest.raises(InvalidWorkload, match="must have timestamp, duration and num_gpus in every line"):
        read_philly(path, rates=rates, kind="v100", tasks=1)


def test_arrivals_are_drawn_alike_from_one_seed(rates: Rates) -> None:
    drawn = generate(rates, kind="v100", tasks=200, per_hour=2.0, counts={1: 0.7, 2: 0.3}, seed=1)
    assert drawn == generate(rates, kind="v100", tasks=200, per_hour=2.0, counts={1: 0.7, 2: 0.3}, seed=1)
    hours = drawn[-1].at_seconds / 3600
    assert 70 < hours < 140
    assert {arrival.family for arrival in drawn} == {"LM x1", "GAN x1", "LM x2"}
