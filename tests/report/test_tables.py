"""Rows, means and the exports made of them."""

from __future__ import annotations

import csv
import io
import math
import re
import statistics
from dataclasses import replace

import pytest

from undelta.report.exports import csv_table, latex, markdown
from undelta.report.read import Audit
from undelta.report.scope import facts
from undelta.report.tables import AVERAGED, MEASURES, attack_labels, mean_of, settings
from undelta.trials.judgment import judge_records
from undelta.trials.record import REFERENCE, Record

HOSTILE = "=cmd|'<script>alert(1)</script>'\n& 50% of_#{x}~^\\"
MEASURE = {measure.key: measure for measure in MEASURES}


def renamed(audit: Audit, name: str) -> Audit:
    records = tuple(replace(record, name=name) for record in audit.records)
    return replace(audit, title=name, records=records, judgment=judge_records(records))


def exported(audit: Audit) -> dict[str, str]:
    labels = attack_labels(audit.records)
    means = settings(audit.records, labels)
    return {
        "csv": csv_table(audit, labels),
        "md": markdown(audit, means, labels, "today"),
        "tex": latex(audit, means),
    }


# Means


def test_means_are_over_the_seeds_of_one_scenario_defense_and_attack(read: Audit) -> None:
    found = settings(read.records, attack_labels(read.records))
    assert len(found) == 12
    first = found[0]
    trials = [record for record in read.records if record.group == ("epochs=1", "none") and record.attack == "awa"]
    values = [record.psnr or 0.0 for record in trials]
    assert (first.name, first.defense, first.attack, first.seeds) == ("epochs=1", "none", "awa", (0, 1))
    assert first.means["psnr"].mean == pytest.approx(statistics.fmean(values))
    assert first.means["psnr"].spread == pytest.approx(abs(values[0] - values[1]) / math.sqrt(2))


def test_what_was_never_measured_has_no_mean(read: Audit) -> None:
    found = settings(read.records, attack_labels(read.records))
    analytic = next(setting for setting in found if setting.attack == "analytic")
    assert (analytic.seeds, analytic.trials) == ((), 2)
    assert all(analytic.means[measure.key].mean is None for measure in AVERAGED)


def test_a_missing_value_leaves_no_mean_of_the_others() -> None:
    assert mean_of([1.0, None, 3.0]).mean is None
    assert mean_of([]).mean is None


def test_one_seed_has_no_spread() -> None:
    one = mean_of([12.345])
    assert one.spread is None
    assert one.show(MEASURE["psnr"]) == "12.35"
    assert mean_of([10.0, 12.0]).show(MEASURE["psnr"]) == "11.00 ± 1.41"


# Names


def test_one_attack_with_several_settings_is_told_apart_by_them(read: Audit) -> None:
    one, two, *_ = read.records
    records = [replace(one, arguments={"steps": 25, "form": "linear"}), replace(two, arguments={"steps": 25})]
    labels = attack_labels(records)
    assert [labels[record.key] for record in records] == ["awa (form=linear)", "awa"]
    assert set(attack_labels(read.records).values()) == {"awa", "ig", "analytic"}


# Exports


def test_csv_holds_every_trial_in_full_precision(read: Audit) -> None:
    rows = list(csv.DictReader(io.StringIO(exported(read)["csv"])))
    assert [row["key"] for row in rows] == [record.key for record in read.records]
    for row, record in zip(rows, read.records, strict=True):
        psnr = record.psnr
        assert row["psnr"] == ("" if psnr is None else repr(psnr))
        assert row["scenario.epochs"] == str(record.scenario["epochs"])
        assert row["scenario.model_arguments.width"] == "2"
        assert row["status"] == record.status
        assert (row["error"] != "") == (record.status == "not applicable")


def test_a_name_is_never_a_formula_of_a_spreadsheet(read: Audit) -> None:
    rows = list(csv.DictReader(io.StringIO(exported(renamed(read, HOSTILE))["csv"])))
    assert {row["scenario"] for row in rows} == {f"'{HOSTILE}"}


def test_no_name_begins_another_row_of_a_csv(read: Audit) -> None:
    text = exported(renamed(read, "one\rtwo"))["csv"]
    assert "\r" not in text
    assert len(list(csv.reader(io.StringIO(text)))) == 1 + len(read.records)


@pytest.mark.parametrize("name", ["[2cm] gap", "*", "]", "a\x1b[31m\x00b"])
def test_no_name_is_an_option_of_the_row_before_it_in_latex(read: Audit, name: str) -> None:
    text = exported(renamed(read, name))["tex"]
    assert not re.search(r"\\\\\s*[\[*]", text)
    assert text.replace("\n", "").isprintable()


def test_negative_numbers_of_a_csv_stay_numbers(read: Audit) -> None:
    record = next(record for record in read.records if record.scored)
    changed = replace(record, ssim=-0.25)
    rows = list(csv.DictReader(io.StringIO(csv_table(replace(read, records=(changed,)), {record.key: "awa"}))))
    assert rows[0]["ssim"] == "-0.25"


def cells(line: str) -> int:
    return line.replace("\\|", "").count("|") - 1


def test_markdown_tables_are_whole_whatever_the_names(read: Audit) -> None:
    for audit in (read, renamed(read, HOSTILE)):
        lines = [line for line in exported(audit)["md"].splitlines() if line.startswith("|")]
        wide, narrow = 5 + len(MEASURES), 4 + len(AVERAGED)
        assert [cells(line) for line in lines[:26]] == [wide] * 26
        means = len(settings(audit.records, attack_labels(audit.records)))
        assert [cells(line) for line in lines[26:]] == [narrow] * (2 + means)


def test_markdown_lets_no_markup_through(read: Audit) -> None:
    text = exported(renamed(read, HOSTILE))["md"]
    assert "<script>" not in text
    assert "&lt;script&gt;" in text


def test_markdown_says_why_a_trial_has_no_numbers(read: Audit) -> None:
    reasons = {record.error for record in read.records if record.error}
    assert len(reasons) == 1
    text = exported(read)["md"]
    assert text.count("not applicable: the closed form needs") == 8


def test_latex_is_a_booktabs_table_with_every_mean(read: Audit) -> None:
    text = exported(read)["tex"]
    lines = [line.strip() for line in text.splitlines()]
    rows = lines[lines.index(r"\midrule") + 1 : lines.index(r"\bottomrule")]
    assert len(rows) == 12
    columns = 4 + len(AVERAGED)
    assert all(row.count(" & ") == columns - 1 and row.endswith(r"\\") for row in rows)
    assert rf"\begin{{tabular}}{{{'l' * 3}{'r' * (columns - 3)}}}" in text
    assert r"$\pm$" in rows[0]


def test_latex_takes_no_command_from_a_name(read: Audit) -> None:
    text = exported(renamed(read, r"\input{/etc/passwd} 50% a_b & c"))["tex"]
    assert r"\input" not in text
    assert r"\textbackslash{}input\{/etc/passwd\} 50\% a\_b \& c" in text


def test_an_undefended_audit_has_no_column_for_defenses(read: Audit) -> None:
    undefended: tuple[Record, ...] = tuple(record for record in read.records if record.defense == "none")
    assert "Defense" in exported(read)["tex"]
    assert "Defense" not in exported(replace(read, records=undefended))["tex"]


# The first screen in words


def test_pure_noise_is_not_counted_among_the_defenses(read: Audit) -> None:
    noise = replace(read.records[0], defense=REFERENCE)
    attacked = dict(facts(replace(read, records=(*read.records, noise)), ()))["What was attacked"]
    assert attacked.endswith("defenses: smaller steps.")


def test_what_was_promised_is_said_of_simulated_clients_alone(read: Audit) -> None:
    foreign = replace(read.records[0], scenario={**read.records[0].scenario, "data": None})
    for records, words in (
        (read.records, "None: no differential privacy."),
        ((*read.records, foreign), "None: no differential privacy. Of the recorded updates it is not known."),
        ((foreign,), "Not known: an update does not tell how its client was protected."),
    ):
        assert dict(facts(replace(read, records=records), ()))["Promised privacy"] == words
