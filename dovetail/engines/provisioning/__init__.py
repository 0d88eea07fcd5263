"""Where nodes come from: a contract (`base`), a command of the user's own (`command`), and Ray's own
autoscaler (`engines/ray/autoscaler`)."""

from dovetail.engines.provisioning.base import ProvidedNode, Provisioner
from dovetail.engines.provisioning.command import CommandProvisioner

__all__ = ["CommandProvisioner", "ProvidedNode", "Provisioner"]
