"""Pages and files for people: one self-contained HTML report, and event files for TensorBoard."""

from dovetail.web.report import write_report
from dovetail.web.tensorboard import write_tensorboard

__all__ = ["write_report", "write_tensorboard"]
