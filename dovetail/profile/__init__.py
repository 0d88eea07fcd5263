"""What runs inside a worker to measure: families, layers, whole steps, devices, links."""

from dovetail.profile.devices import measure_kind, measure_links
from dovetail.profile.family_digest import batch_bytes, fingerprint, versions
from dovetail.profile.layers import measure_layers
from dovetail.profile.step_measurement import measure

__all__ = ["batch_bytes", "fingerprint", "measure", "measure_kind", "measure_layers", "measure_links", "versions"]
