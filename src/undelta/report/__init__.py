"""The report: one self-contained page, and tables, from the records and pictures of an audit; nothing is run again."""

from undelta.report.write import write_report

__all__ = ["write_report"]
