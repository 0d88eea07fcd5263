"""Every policy shipped, and its blind form, keeps the laws of policies."""

from pathlib import Path

import pytest

from dovetail.planning.share import policies
from dovetail.planning.share.policies import BLIND, COARSE, PARETO, POLICIES, SHARING
from dovetail.testing.policies import ParetoConformance, PolicyConformance, SharingConformance


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


class TestCoarsePolicies(PolicyConformance):
    packed = False

    @pytest.fixture(params=sorted(COARSE), autouse=True)
    def chosen(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(self, "allocate", COARSE[request.param])


class TestPareto(ParetoConformance):
    @pytest.fixture(params=PARETO, autouse=True)
    def chosen(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(self, "allocate", POLICIES[request.param])


class TestSharing(SharingConformance):
    @pytest.fixture(params=SHARING, autouse=True)
    def chosen(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(self, "allocate", POLICIES[request.param])


def test_every_file_of_the_folder_is_listed() -> None:
    aside = {"__init__", "blindness", "coarsening", "example_problem", "ordered"}
    folder = Path(policies.__file__).parent
    assert {file.stem for file in folder.glob("*.py")} - aside == POLICIES.keys() == BLIND.keys()
