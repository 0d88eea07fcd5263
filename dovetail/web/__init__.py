"""Pages and files for people: the live page and the report, which is the same in one file; and event files for
TensorBoard."""

from dovetail.web.report import write_report

__all__ = ["write_report"]
