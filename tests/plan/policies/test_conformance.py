"""Every policy shipped, and its blind form, keeps the laws of policies."""

from pathlib import Path

import pytest

from dovetail.plan import policies
from dovetail.plan.policies import BLIND, POLICIES
from dovetail.testing.policies import ParetoConformance, PolicyConformance, SharingConformance

PARETO = ("completions", "finish_time_fairness", "makespan", "max_min_fairness", "throughput", "water_filling")
SHARING = ("finish_time_fairness", "isolated", "max_min_fairness", "water_filling")


class TestPolicies(PolicyConformance):
    @pytest.fixture(params=sorted(POLICIES), autouse=True)
    def chosen(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(self, "allocate", POLICIES[request.param])
        monkeypatch.setattr(self, "widest", 1 if request.param == "allox" else 2)


class TestBlindPolicies(PolicyConformance):
    @pytest.fixture(params=sorted(POLICIES), autouse=True)
    def chosen(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(self, "allocate", BLIND[request.param])
        monkeypatch.setattr(self, "widest", 1 if request.param == "allox" else 2)


class TestPareto(ParetoConformance):
    @pytest.fixture(params=PARETO, autouse=True)
    def chosen(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(self, "allocate", POLICIES[request.param])


class TestSharing(SharingConformance):
    @pytest.fixture(params=SHARING, autouse=True)
    def chosen(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(self, "allocate", POLICIES[request.param])


def test_every_file_of_the_folder_is_listed() -> None:
    aside = {"__init__", "blind", "example", "ordered"}
    folder = Path(policies.__file__).parent
    assert {file.stem for file in folder.glob("*.py")} - aside == POLICIES.keys() == BLIND.keys()
