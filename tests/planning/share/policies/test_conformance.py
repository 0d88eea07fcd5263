"""Every policy shipped, and its blind form, keeps the laws of policies."""

from pathlib import Path

import pytest

from dovetail.planning.share import policies
from dovetail.planning.share.policies import PARETO, POLICIES, SHARING
from dovetail.testing.policies import ParetoConformance, PolicyConformance, SharingConformance
from tests.planning.share.policies.blind import blind


class TestPolicies(PolicyConformance):
    @pytest.fixture(params=sorted(POLICIES), autouse=True)
    def chosen(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(self, "allocate", POLICIES[request.param])


class TestBlindPolicies(PolicyConformance):
    @pytest.fixture(params=sorted(POLICIES), autouse=True)
    def chosen(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(self, "allocate", blind(POLICIES[request.param]))


class TestPareto(ParetoConformance):
    @pytest.fixture(params=PARETO, autouse=True)
    def chosen(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(self, "allocate", POLICIES[request.param])


class TestSharing(SharingConformance):
    @pytest.fixture(params=SHARING, autouse=True)
    def chosen(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(self, "allocate", POLICIES[request.param])


def test_every_file_of_the_folder_is_listed() -> None:
    aside = {"__init__", "blindness", "example_problem", "ordered"}
    folder = Path(policies.__file__).parent
    assert {file.stem for file in folder.glob("*.py")} - aside == POLICIES.keys()
