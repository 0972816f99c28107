"""The pages for users keep their word: links lead somewhere, snippets run, commands and code that they name exist."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from unittest.mock import patch

import pytest
import typer

import undelta
from undelta.cli import app
from undelta.client.defenses import DEFENSES
from undelta.client.scenario import Scenario
from undelta.errors import ConfigError
from undelta.schema import parse
from undelta.trials.config import TEMPLATE

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "notebooks").glob("*.md"))]
RUNNABLE = ["README.md", "docs/quickstart.md", "docs/adding-your-own.md"]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    return [code for kind, code in BLOCK.findall(page.read_text(encoding="utf-8")) if kind == language]


def anchors(page: Path) -> set[str]:
    """What GitHub makes of a page's titles."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if target.startswith("https://"):
            continue
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_prose_wraps_at_a_hundred_columns(page: Path) -> None:
    """Outside of code, tables, pictures and titles, so that a change of one sentence is a change of a few lines."""
    prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    long = [line for line in prose.splitlines() if len(line) > 100 and not line.startswith(("|", "![", "#"))]
    assert not long


@pytest.mark.parametrize("name", RUNNABLE)
def test_python_snippets_run_from_top_to_bottom(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = "\n".join(blocks(ROOT / name, "python")).replace("steps=200", "steps=2")
    assert "from undelta import" in code
    with patch.dict(DEFENSES):  # one page adds a defense of its own
        exec(compile(code, name, "exec", dont_inherit=True), {"__name__": "snippet"})  # noqa: S102


def commands() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for block in blocks(page, "sh"):
            for line in block.splitlines():
                if line.startswith("undelta "):
                    yield page.name, line


@pytest.mark.parametrize(("page", "line"), list(commands()))
def test_commands_and_their_options_exist(page: str, line: str) -> None:
    known = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    _, name, *words = shlex.split(line, comments=True)
    assert name in known, page
    options = {option for parameter in known[name].params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= options, page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_toml_snippets_are_toml(page: Path) -> None:
    for block in blocks(page, "toml"):
        assert tomllib.loads(block)


def test_every_field_of_a_scenario_is_explained_once_in_the_table_and_in_the_template() -> None:
    names = sorted(field.name for field in fields(Scenario))
    table = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "scenario.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(table) == names
    template = TEMPLATE.read_text(encoding="utf-8")
    assert sorted(re.findall(r"^(?:# )?(\w+) = .*# ", template, re.MULTILINE)) == names
    assert parse(Scenario, tomllib.loads(template), where="template", error=ConfigError) == Scenario()


def entries() -> Iterator[tuple[str, str]]:
    """(file, name) of every piece of code that the table of equations points to; a file alone has no name."""
    for row in (ROOT / "docs" / "equations.md").read_text(encoding="utf-8").splitlines():
        cells = row.split("|")
        file = ""
        for word in re.findall(r"`([^`]+)`", cells[3]) if len(cells) == 5 else []:
            if word.endswith(".py"):
                file = word
                yield file, ""
            else:
                yield file, word


@pytest.mark.parametrize(("file", "name"), list(entries()))
def test_the_table_of_equations_points_to_code_that_exists(file: str, name: str) -> None:
    places = [Path(undelta.__file__).parent / file, ROOT / file]
    source = next(place for place in places if place.is_file()).read_text(encoding="utf-8")
    if name:
        assert re.search(rf"^\s*(def|class) {name.split('.')[-1]}\b|^{name} *[:=]", source, re.MULTILINE)


EQUATIONS = """
FL delta_theta model_update_mini_batch delta_theta_G inverse_G delta_theta_hat_G loss_grad_match loss_cosine inv_arg_min
scenario_3 scenario4 theta_approximate model_update_approximate scenario3_2 weighted_loss weighted_cosine_distance
q_max_3kinds q_max_conv q_max_bn q_max_fc error_mean error_var weight_aug subsec_P Q argmin_weighted_loss
obj_func_BO_f_Q argmin_Q GP_prior GP_posterior EI argmax_EI
"""
"""All that have a label in the paper's source."""


def test_the_table_has_every_labelled_equation_of_the_paper() -> None:
    found = set(re.findall(r"`eq_(\w+)`", (ROOT / "docs" / "equations.md").read_text(encoding="utf-8")))
    assert found == set(EQUATIONS.split())


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop().resolve()
        if page not in reached:
            reached.add(page)
            links = re.findall(r"\]\(([^)\s#]+\.md)", page.read_text(encoding="utf-8"))
            waiting += [page.parent / link for link in links if not link.startswith("https://")]
    assert {page.resolve() for page in PAGES} <= reached
