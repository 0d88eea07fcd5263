"""Where nodes come from: a contract (`base`), and a command of the user's own (`command`)."""

from dovetail.engines.provisioning.base import ProvidedNode, Provisioner
from dovetail.engines.provisioning.command import CommandProvisioner

__all__ = ["CommandProvisioner", "ProvidedNode", "Provisioner"]
