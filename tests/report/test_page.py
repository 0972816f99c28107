"""The page as text: complete, self-contained, and safe whatever the records say."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import shutil
from html.parser import HTMLParser
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch

from undelta.cli import main
from undelta.files import FORMAT, write_tensors
from undelta.report import write_report
from undelta.report.read import read_audit
from undelta.studies.scoring import score_job

from .audits import TRIALS, AuditCopy
from .test_read import SCENARIO

HOSTILE = "</script><script>alert('x')</script><img src=x onerror=alert(1)>\"' {{ 7*7 }} \u2028"


class Page(HTMLParser):
    """A page's elements, and the text in each kind of them."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text(encoding="utf-8")
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(self.source)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))
        self._open.append(tag)
        self.texts.setdefault(tag, [])
        if tag in ("script", "style", "h2", "h3", "pre", "td", "th"):
            self.texts[tag].append("")

    def handle_data(self, data: str) -> None:
        if self._open and self.texts.get(self._open[-1]):
            self.texts[self._open[-1]][-1] += data

    def handle_endtag(self, tag: str) -> None:
        if tag in self._open:
            while self._open.pop() != tag:
                pass

    def of(self, tag: str, **attributes: str) -> list[dict[str, str | None]]:
        """The elements with these attributes."""
        return [
            found
            for name, found in self.elements
            if name == tag and all(found.get(key) == value for key, value in attributes.items())
        ]

    @property
    def data(self) -> Any:
        """What the script reads."""
        return json.loads(self.texts["script"][0])


@pytest.fixture
def page(audit: AuditCopy) -> Page:
    return Page(write_report(audit.path))


def test_the_report_is_four_files(audit: AuditCopy) -> None:
    before = {path.name for path in audit.path.iterdir()}
    assert write_report(audit.path) == audit.path / "report.html"
    assert {path.name for path in audit.path.iterdir()} - before == {
        f"report.{kind}" for kind in ("html", "md", "csv", "tex")
    }


def test_the_page_loads_nothing(page: Page) -> None:
    for _, attributes in page.elements:
        for name in ("src", "href", "xlink:href", "action", "srcset", "data"):
            value = attributes.get(name)
            assert value is None or value.startswith(("#", "data:")), value
    style = page.texts["style"][0]
    assert "url(" not in style
    assert "@import" not in style
    assert not {"iframe", "object", "embed", "base", "form"} & {tag for tag, _ in page.elements}


def test_a_page_with_pictures_says_that_they_are_private(page: Page, audit: AuditCopy) -> None:
    said = "Holds private images"
    assert said in page.source
    for path in audit.path.glob("trials/*/pictures.safetensors"):
        path.unlink()
    assert said not in write_report(audit.path).read_text()


def test_the_policy_allows_exactly_the_pages_own_style_and_script(page: Page) -> None:
    (policy,) = [found["content"] for found in page.of("meta", **{"http-equiv": "Content-Security-Policy"})]
    assert policy is not None
    assert policy.startswith("default-src 'none'; img-src data:;")
    assert "unsafe" not in policy
    for kind, text in (("style", page.texts["style"][0]), ("script", page.texts["script"][1])):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    # Style attributes and inline handlers would be blocked, so there must be none.
    assert not [found for _, found in page.elements if "style" in found or any(key[:2] == "on" for key in found)]


def test_every_trial_is_a_row_and_can_be_repeated(page: Page, audit: AuditCopy) -> None:
    ids = {found["id"] for _, found in page.elements if "id" in found}
    for number in range(TRIALS):
        assert f"trial-{number}" in ids
    for record in read_audit(audit.path).records:
        assert f"undelta audit trial-{record.key}.toml" in page.source
    assert page.source.count("not applicable</span>") >= 8
    assert f"{TRIALS} of {TRIALS} trials" in page.source


def test_every_link_within_the_page_has_its_target(page: Page) -> None:
    ids = [found["id"] for _, found in page.elements if "id" in found]
    assert len(ids) == len(set(ids))
    targets = [str(found["href"])[1:] for _, found in page.elements if str(found.get("href")).startswith("#")]
    assert set(targets) <= set(ids)


def test_a_reason_is_written_once_however_many_trials_share_it(page: Page) -> None:
    assert len([found for found in page.of("div") if str(found.get("id")).startswith("reason-")]) == 1
    assert len([found for found in page.of("a") if found.get("href") == "#reason-1"]) == 8


def test_unfinished_and_failed_trials_are_shown_as_such(audit: AuditCopy) -> None:
    one, two = audit.records(attack="ig")[:2]
    audit.forget(one)
    audit.fail(two, "RuntimeError: out of <memory>")
    page = Page(write_report(audit.path))
    assert 'class="status not-finished">not finished' in page.source
    assert 'class="status failed">failed' in page.source
    assert "RuntimeError: out of &lt;memory&gt;" in page.source


def test_the_verdict_is_the_audits_own(page: Page, audit: AuditCopy) -> None:
    for verdict in json.loads((audit.path / "verdict.json").read_text())["verdicts"]:
        assert html.escape(verdict["text"], quote=False) in page.source
    assert "does not prove that nobody can" in page.source


def test_without_a_verdict_file_the_records_are_judged(audit: AuditCopy) -> None:
    stated = read_audit(audit.path).judgment
    (audit.path / "verdict.json").unlink()
    page = Page(write_report(audit.path))
    assert read_audit(audit.path).judgment == stated
    assert html.escape(stated.headline, quote=False) in page.source


def test_a_failed_attack_is_never_green_and_says_nothing_about_safety(audit: AuditCopy) -> None:
    for path in audit.records(status="completed"):
        poor = [{**image, "ssim": 0.1} for image in json.loads(path.read_text())["images"]]
        audit.change(path, images=poor, mismatch=0.51)
    (audit.path / "verdict.json").unlink()
    page = Page(write_report(audit.path))
    levels = {str(found["class"]) for found in page.of("span") if str(found.get("class")).startswith("level")}
    assert levels == {"level attack-failed"}
    style = page.texts["style"][0]
    green = [rule for rule in style.split("}") if "var(--good)" in rule and "color" in rule]
    assert green
    assert all("resisted" in rule for rule in green if "--good:" not in rule)
    assert "says nothing about safety" in page.source.partition('id="verdict-title"')[2].partition("</h2>")[0]


def test_the_first_screen_has_what_somebody_with_one_minute_needs(audit: AuditCopy) -> None:
    toml = audit.path / "verdict.json"
    judgment = json.loads(toml.read_text())
    gate = {"passed": False, "rules": ["ssim at most 0.5"], "offenses": ["epochs=1: ssim 0.9 is above 0.5"]}
    judgment["verdicts"][0] |= {"epsilon": 8.0, "delta": 1e-5}
    toml.write_text(json.dumps({**judgment, "gate": gate, "auditor": "Privacy office"}))
    page = Page(write_report(audit.path))
    first = page.source.partition('<ul class="verdicts">')[0]
    for words in (
        "Holds private images",
        html.escape(judgment["headline"], quote=False),
        "The model cnn, 3 images of one client (N), data faces, 12 x 12 pixels, 1 or 2 local epochs (E), "
        "one mini-batch (B), sgd, learning rate (η) 0.05 or 0.001, defenses: smaller steps.",
        "It was granted the labels",
        "ε = 8 at δ = 1e-05",
        "Gate failed (ssim at most 0.5).",
        "epochs=1: ssim 0.9 is above 0.5",
        "by Privacy office",
        f"undelta {version('undelta')}",
        "Most exposed image",
        "Private original",
        "Without it: mean color",
        "What would help",
        "What it does not prove",
    ):
        assert words in first, words
    (color,) = [found for found in page.of("rect") if found.get("width") == "1"]
    assert re.fullmatch("#[0-9a-f]{6}", str(color["fill"]))


def test_what_was_not_measured_is_said_to_be_missing(audit: AuditCopy) -> None:
    for path in audit.records():
        audit.change(path, lpips=None)
    page = Page(write_report(audit.path))
    assert "undelta fetch lpips" in page.source
    assert [text for text in page.texts["td"] if text in ("None", "nan", "NaN", "null")] == []


def test_layer_weights_are_shown_where_a_record_has_them(page: Page, audit: AuditCopy) -> None:
    weights = json.loads(audit.records(attack="awa")[0].read_text())["layer_weights"]
    assert weights
    for layer in weights:
        assert f'<th scope="row">{layer}</th>' in page.source
    for path in audit.records():
        audit.change(path, layer_weights=None)
    assert "Layer weights" not in write_report(audit.path).read_text()


def test_the_history_of_tuning_is_shown_where_there_is_one(page: Page, audit: AuditCopy) -> None:
    assert "Bayesian" not in page.source
    trials = [{"number": number, "value": 1 / (number + 1), "parameters": {"conv": number}} for number in range(5)]
    (audit.path / "tuning.json").write_text(json.dumps({"trials": trials}))
    text = write_report(audit.path).read_text()
    assert "The smallest value, 0.2, came from trial 4" in text
    assert "<code>conv = 4</code>" in text
    assert "among the best" not in text
    study = {"trials": trials, "direction": "maximize", "importance": {"conv": 1.0}}
    (audit.path / "tuning.json").write_text(json.dumps(study))
    text = write_report(audit.path).read_text()
    assert "The largest value, 1, came from trial 0" in text
    assert '<th scope="row">conv</th><td class="number">1.00</td>' in text


def test_the_bound_is_shown_where_there_is_one(page: Page, audit: AuditCopy) -> None:
    assert 'id="bound"' not in page.source
    row = {"seed": 0, "sigma": 0.01, "update_rms": 0.02, "least_mse": 16.5, "bound": 17.0, "error": 0.2, "gap": 0.1}
    more = {"images": [17.0], "linear": [16.0], "fixed": 0.2, "products": 40, "attack": "awa", "reached": 15.0}
    values = {
        "scenario": {"data": "photos", "num_samples": 8, "model": "cnn"},
        "noise": "the noise defense",
        "prior": "public <b>images</b>",
        "prior_psnr": 11.0,
        "assumptions": ["local"],
        "rows": [{**row, **more}],
    }
    (audit.path / "bound.json").write_text(json.dumps(values))
    text = write_report(audit.path).read_text()
    assert "no attack is expected to exceed about 17.0 dB; the strongest attack here, awa, reached 15.0" in text
    assert "2.0 dB are left to attackers" in text
    assert "public &lt;b&gt;images" in text
    assert "8 images of photos" in text


# What records say is text


def test_no_name_becomes_markup(audit: AuditCopy) -> None:
    before = Page(write_report(audit.path))
    audit.rename(HOSTILE)
    for path in audit.records(attack="awa"):
        scenario = json.loads(path.read_text())["scenario"]
        weights = {HOSTILE: 1.0}
        audit.change(path, error=HOSTILE, status=HOSTILE, layer_weights=weights, versions={HOSTILE: HOSTILE})
        audit.change(path, defense=HOSTILE, scenario={**scenario, HOSTILE: HOSTILE}, date=HOSTILE)
    (audit.path / "audit.toml").write_text(f"name = {json.dumps(HOSTILE)}\n# {HOSTILE}\n", encoding="utf-8")
    (audit.path / "run.json").write_text(
        json.dumps({**json.loads((audit.path / "run.json").read_text()), "title": HOSTILE}), encoding="utf-8"
    )
    verdict = dict.fromkeys(("scenario", "defense", "text"), HOSTILE)
    gate = {"passed": False, "rules": [HOSTILE], "offenses": [HOSTILE]}
    judgment = {"headline": HOSTILE, "auditor": HOSTILE, "gate": gate}
    verdicts = [{**verdict, "diagnosis": {"level": "leaks", "text": HOSTILE}}]
    (audit.path / "verdict.json").write_text(json.dumps({**judgment, "verdicts": verdicts}))
    tuning = {"number": 0, "value": 1.0, "parameters": {HOSTILE: 1.0}}
    (audit.path / "tuning.json").write_text(json.dumps({"trials": [tuning], "importance": {HOSTILE: 1.0}}))
    page = Page(write_report(audit.path))
    assert len(page.of("script")) == 2
    assert "49" not in page.texts["h3"][0]
    assert "alert" not in page.texts["script"][1]
    assert page.texts["script"][1] == before.texts["script"][1]
    assert not [found for _, found in page.elements if "onerror" in found]
    assert {found.get("src") for found in page.of("img")} <= {None}


def test_no_name_leaves_the_block_of_data(audit: AuditCopy) -> None:
    for path in audit.records(attack="awa"):
        key = path.parent
        for name in ("record.json", "trial.json"):
            audit.change(key / name, attack=HOSTILE)
    page = Page(write_report(audit.path))
    assert HOSTILE in {row["label"] for row in page.data["rows"].values()}
    block = page.source.partition('id="data">')[2].partition("</script>")[0]
    assert "<" not in block
    assert json.loads(block) == page.data


def test_half_a_character_in_a_name_does_not_keep_the_report_from_being_written(audit: AuditCopy) -> None:
    audit.rename("half \ud800 a character")
    assert "half ? a character" in write_report(audit.path).read_text(encoding="utf-8")


# Size


def test_originals_are_carried_once_per_seed(page: Page) -> None:
    shown = {found["data-originals"] for _, found in page.elements if "data-originals" in found}
    assert len(shown) == 2
    identities = [found["id"] for found in page.of("image")]
    assert len(identities) == len(set(identities))


def test_a_page_of_fifty_trials_of_noise_stays_below_five_megabytes(audit: AuditCopy, tmp_path: Path) -> None:
    """Noise is what compression likes least, and long histories make long curves."""
    one = audit.records(attack="awa")[0].parent
    many = AuditCopy(path=tmp_path / "many")
    shape = (16, 3, 32, 32)
    for number in range(50):
        folder = many.path / "trials" / f"{number:016x}"
        shutil.copytree(one, folder)
        record = json.loads((folder / "record.json").read_text())
        history = [
            {"iteration": 10 * step, "seconds": step / 7, "mismatch": 1 / (step + 1 + number / 99), "loss": 1.0}
            for step in range(500)
        ]
        changes = {"key": folder.name, "seed": number, "history": history, "images": 16 * record["images"][:1]}
        audit.change(folder / "record.json", **changes)
        generator = torch.Generator().manual_seed(number)
        tensors = {
            name: torch.randint(0, 256, (*frames, *shape), dtype=torch.uint8, generator=generator)
            for name, frames in (("originals", ()), ("reconstruction", ()), ("iterates", (8,)))
        }
        tensors["iterations"] = torch.arange(8)
        write_tensors(folder / "pictures.safetensors", tensors, {"format": FORMAT, "kind": "pictures"})
    keys = [f"{number:016x}" for number in range(50)]
    (many.path / "run.json").write_text(json.dumps({"title": "many", "keys": keys}))
    assert write_report(many.path).stat().st_size < 5_000_000


# Single runs


def write_run(directory: Path) -> Path:
    from undelta.studies.single import attack_job, simulate_job

    (directory / "scenario.toml").write_text(SCENARIO)
    seen, truth = directory / "seen", directory / "truth"
    simulate_job(directory / "scenario.toml", observation_path=seen, truth_path=truth, seed=0)
    attack_job(seen, attack="ig", arguments={"steps": 2}, out=directory / "run", seed=0)
    return directory / "run"


def test_a_run_that_nobody_scored_shows_what_was_found_and_no_numbers(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    page = Page(write_report(run))
    assert "undelta score RUN --truth TRUTH" in page.source
    assert not [found for _, found in page.elements if "data-originals" in found]
    assert len([found for found in page.of("button") if found.get("class") == "tile"]) == 2
    (row,) = page.data["rows"].values()
    assert row["frames"]  # on the way, too
    assert "compare by eye" in page.source.partition('<ul class="verdicts">')[0]
    assert {str(found["class"]) for found in page.of("span") if "level" in str(found.get("class"))} <= {
        "level attack-failed",
        "level not-compared",
    }


def test_a_scored_run_has_the_report_of_an_audit(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    before = Page(write_report(run)).data["rows"]["grid0row0"]["frames"]
    score_job(run, truth_path=tmp_path / "truth")
    page = Page(write_report(run))
    assert [step for step, _ in page.data["rows"]["grid0row0"]["frames"]] == [step for step, _ in before]
    assert all(psnr is not None for _, psnr in page.data["rows"]["grid0row0"]["frames"])
    assert [found for _, found in page.elements if "data-originals" in found]
    assert "PSNR over iterations" in page.source
    assert "pure noise" in page.source


# The command


def test_the_command_says_where_the_report_is(
    audit: AuditCopy, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["undelta", "report", str(audit.path)])
    with pytest.raises(SystemExit) as done:
        main()
    assert done.value.code == 0
    printed = capsys.readouterr().out
    assert str(audit.path / "report.html") in printed
    assert re.search(r"\(\d+\.\d MB\)", printed)


def test_a_directory_without_results_is_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["undelta", "report", str(tmp_path)])
    with pytest.raises(SystemExit) as done:
        main()
    assert done.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1
    assert "run.json" in printed.err
