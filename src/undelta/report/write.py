"""`undelta report`: read an audit, lay everything out, write the page and the tables."""

from __future__ import annotations

import datetime
from pathlib import Path

from undelta.files import write_bytes
from undelta.report.exports import csv_table, latex, markdown
from undelta.report.page import render
from undelta.report.read import read_audit
from undelta.report.tables import attack_labels, settings


def write_report(directory: str | Path) -> Path:
    """Write ``report.html``, ``report.md``, ``report.csv`` and ``report.tex`` into an audit's or a run's directory.

    Args:
        directory: What ``undelta audit --out``, ``undelta attack --out`` or ``undelta demo --out`` wrote. An audit
            that is not finished is reported as far as it is.

    Returns:
        The page. It needs no network and no other file.

    Examples:
        >>> import tempfile
        >>> from undelta import Scenario, Trial, run, write_outcomes
        >>> small = {"width": 4, "hidden": 16}
        >>> scenario = Scenario(data="digits", num_samples=2, model_arguments=small, epochs=2, batches=1)
        >>> trial = Trial(scenario=scenario, attack="sme", arguments={"steps": 5})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_outcomes(folder, [trial], [run(trial)])
        ...     page = write_report(folder)
        ...     sorted(path.name for path in Path(folder).glob("report.*"))
        ['report.csv', 'report.html', 'report.md', 'report.tex']
    """
    directory = Path(directory)
    audit = read_audit(directory)
    labels = attack_labels(audit.records)
    means = settings(audit.records, labels)
    date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    contents = {
        "report.md": markdown(audit, means, labels, date),
        "report.csv": csv_table(audit, labels),
        "report.tex": latex(audit, means),
        "report.html": render(audit, means, labels, date),
    }
    for name, content in contents.items():
        # A name from a file may hold half a character, which no encoding has.
        write_bytes(directory / name, content.encode("utf-8", "replace"), private=name == "report.html")
    return directory / "report.html"
