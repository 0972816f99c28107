"""Verdicts as the tools of continuous integration read them: JUnit XML, SARIF, and a summary in Markdown."""

from __future__ import annotations

import json
from importlib.metadata import version
from typing import Any
from xml.etree import ElementTree

from undelta.report.templates import escape
from undelta.trials.diagnosis import MEANINGS, Level
from undelta.trials.judgment import Judgment
from undelta.trials.verdict import Verdict

LEVELS: dict[Level, str] = {
    "leaks": "error",
    "not compared": "warning",
    "attack failed": "warning",
    "resisted": "none",
    "not measured": "warning",
}
"""How SARIF grades them."""


def junit(judgment: Judgment) -> str:
    """A test case per scenario and defense; it fails where the gate does, or without a gate where it leaks."""
    cases = [(verdict, _offenses(judgment, verdict)) for verdict in judgment.verdicts]
    suite = ElementTree.Element(
        "testsuite",
        name="undelta",
        tests=str(len(cases)),
        failures=str(sum(bool(lines) for _, lines in cases)),
        skipped=str(sum(_says_nothing(verdict, lines) for verdict, lines in cases)),
    )
    for verdict, lines in cases:
        case = ElementTree.SubElement(suite, "testcase", classname="undelta", name=_printable(verdict.title))
        if lines:
            failure = ElementTree.SubElement(case, "failure", message=_printable("; ".join(lines)))
            failure.text = _printable(verdict.text)
        elif _says_nothing(verdict, lines):
            ElementTree.SubElement(case, "skipped", message=_printable(f"{verdict.level}: {verdict.diagnosis.text}"))
        ElementTree.SubElement(case, "system-out").text = _printable(verdict.text)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _offenses(judgment: Judgment, verdict: Verdict) -> list[str]:
    if judgment.gate is None:
        return [verdict.diagnosis.text] if verdict.level == "leaks" else []
    return [line for line in judgment.gate.offenses if line.startswith(f"{verdict.title}: ")]


def _says_nothing(verdict: Verdict, lines: list[str]) -> bool:
    """A test that ran without telling anything is not one that passed."""
    return not lines and verdict.level not in ("leaks", "resisted")


def _printable(text: str) -> str:
    """Without the characters that XML has no place for."""
    return "".join(one if one.isprintable() or one in "\t\n" else "?" for one in text)


def sarif(judgment: Judgment, source: str) -> str:
    """SARIF 2.1.0: a result per scenario and defense, at the configuration that asked for it."""
    results: list[dict[str, Any]] = [
        {
            "ruleId": verdict.level.replace(" ", "-"),
            "level": LEVELS[verdict.level],
            "kind": "pass" if verdict.diagnosis.reassuring else "fail" if verdict.level == "leaks" else "open",
            "message": {"text": f"{verdict.title}: {verdict.text}"},
            "locations": [{"physicalLocation": {"artifactLocation": {"uri": source}, "region": {"startLine": 1}}}],
            "partialFingerprints": {"scenario": verdict.title},
        }
        for verdict in judgment.verdicts
    ]
    for result in results:
        if result["kind"] == "open":
            result["level"] = "none"  # as the standard wants it; the rule says how grave it is
    rules = [
        {
            "id": level.replace(" ", "-"),
            "shortDescription": {"text": meaning},
            "defaultConfiguration": {"level": LEVELS[level]},
        }
        for level, meaning in MEANINGS.items()
    ]
    driver = {"name": "undelta", "version": version("undelta"), "rules": rules}
    run = {"tool": {"driver": driver}, "results": results}
    schema = "https://json.schemastore.org/sarif-2.1.0.json"
    return json.dumps({"$schema": schema, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"


def step_summary(judgment: Judgment) -> str:
    """What a job's page shows, in Markdown."""
    lines = ["### undelta: what the update reveals", "", escape(judgment.headline), ""]
    if judgment.gate:
        lines += [
            f"**{escape(judgment.gate.text)}**",
            "",
            *(f"- {escape(line)}" for line in judgment.gate.offenses),
            "",
        ]
    lines += ["| scenario | defense | verdict | most exposed image |", "|---|---|---|---|"]
    for verdict in judgment.verdicts:
        cells = (
            verdict.scenario,
            verdict.defense,
            verdict.level,
            verdict.exposed.text if verdict.exposed else "n/a",
        )
        lines.append(f"| {' | '.join(map(escape, cells))} |")
    return "\n".join(lines) + "\n"
