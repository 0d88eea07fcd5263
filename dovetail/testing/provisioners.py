"""The conformance suite of provisioners. Subclass it, and give a fixture `provisioner` that has no node yet."""

from dovetail.engines.provisioning import Provisioner
from dovetail.vocabulary.markets import Market

SPOT = Market(kind="v100", zone="a")
SURE = Market(kind="v100", zone="a", spot=False)


class ProvisionerConformance:
    """What every `Provisioner` holds."""

    def test_it_lists_what_was_started(self, provisioner: Provisioner) -> None:
        """With name and market, until it is stopped."""
        assert provisioner.nodes() == []
        provisioner.start("one", SPOT)
        provisioner.start("two", SURE)
        assert {node.name: node.market for node in provisioner.nodes()} == {"one": SPOT, "two": SURE}
        provisioner.stop("one")
        assert [node.name for node in provisioner.nodes()] == ["two"]
        provisioner.stop("two")
        assert provisioner.nodes() == []

    def test_stopping_twice_is_no_error(self, provisioner: Provisioner) -> None:
        """Nor is stopping what never was."""
        provisioner.start("one", SPOT)
        provisioner.stop("one")
        provisioner.stop("one")
        provisioner.stop("never")
        assert provisioner.nodes() == []

    def test_a_node_stays_until_it_is_taken_away(self, provisioner: Provisioner) -> None:
        """Without a notice it leaves at no time."""
        provisioner.start("one", SPOT)
        (node,) = provisioner.nodes()
        assert node.leaves_seconds == float("inf")
        provisioner.stop("one")
