"""The Ray cluster that the tests here share."""

import pytest

from tests.engines.ray.ray_clusters import SharedNodes


@pytest.fixture(scope="package")
def shared(tmp_path_factory):
    """Nodes of one cluster, which a file of tests asks for; it may end it to start its own."""
    nodes = SharedNodes(tmp_path_factory.mktemp("ray"))
    yield nodes
    nodes.close()


@pytest.fixture(scope="module")
def ray(shared):
    """A cluster with a node of two cores, its head, and two of one; and what was found of it."""
    return shared.survey(2, 1, 1)
