"""Verdicts for the tools of continuous integration."""

from __future__ import annotations

import json
from xml.etree import ElementTree

from undelta.report.ci import junit, sarif, step_summary
from undelta.trials.diagnosis import Diagnosis, Level
from undelta.trials.gates import apply_gates, parse_gates
from undelta.trials.judgment import Judgment
from undelta.trials.verdict import Verdict

HOSTILE = "<b>&|`x\x00"


def verdict(name: str, level: Level, ssim: float) -> Verdict:
    return Verdict(
        scenario=name,
        defense="none",
        diagnosis=Diagnosis(level=level, text=f"It is {level}."),
        text=f"It is {level}.",
        worst={"ssim": ssim},
    )


VERDICTS = (verdict("bad", "leaks", 0.9), verdict(HOSTILE, "attack failed", 0.1), verdict("good", "resisted", 0.1))
GATED = Judgment(
    headline="All & everything.", verdicts=VERDICTS, gate=apply_gates(VERDICTS, parse_gates({"ssim": 0.5}, {}))
)


def test_junit_fails_where_the_gate_does_and_skips_what_says_nothing() -> None:
    suite = ElementTree.fromstring(junit(GATED))  # noqa: S314 (our own)
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "1", "1")
    bad, failed, good = suite.findall("testcase")
    assert [one.get("message") for one in bad.iter("failure")] == ["bad: ssim 0.9 is above 0.5"]
    assert failed.find("skipped") is not None
    assert failed.get("name") == HOSTILE.replace("\x00", "?")
    assert [one.tag for one in good] == ["system-out"]
    without = Judgment(headline="", verdicts=VERDICTS)
    assert ElementTree.fromstring(junit(without)).get("failures") == "1"  # noqa: S314


def test_sarif_grades_a_leak_as_an_error_and_only_what_resisted_as_passed() -> None:
    (run,) = json.loads(sarif(GATED, "audit.toml"))["runs"]
    assert [(one["ruleId"], one["kind"], one["level"]) for one in run["results"]] == [
        ("leaks", "fail", "error"),
        ("attack-failed", "open", "none"),
        ("resisted", "pass", "none"),
    ]
    assert {one["ruleId"] for one in run["results"]} <= {rule["id"] for rule in run["tool"]["driver"]["rules"]}


def test_the_summary_is_markdown_without_markup_of_others() -> None:
    text = step_summary(GATED)
    assert "Gate failed (ssim at most 0.5)." in text
    assert "<b>" not in text
    assert len([line for line in text.splitlines() if line.startswith("| ")]) == 4
