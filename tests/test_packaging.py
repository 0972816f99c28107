"""What is shipped: the wheel and the sdist hold all that the package needs, and the files around them are sound."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

import undelta

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "undelta"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TRIED = """
import pathlib, sys
sys.path.insert(0, sys.argv[1])
import undelta
from undelta.cli import main
assert undelta.__file__.startswith(sys.argv[1]), undelta.__file__
small = "data = 'faces'\\nimage_size = 12\\nnum_samples = 1\\nmodel = 'mlp'\\nepochs = 1\\nbatches = 1"
pathlib.Path("small.toml").write_text(small)
simulate = ["simulate", "small.toml", "--observation", "seen", "--truth", "truth"]
attack = ["attack", "seen", "--attack", "analytic", "--out", "run"]
for words in (["--version"], ["list"], ["init", "scenario.toml"], simulate, attack, ["report", "run"]):
    sys.argv = ["undelta", *words]
    try:
        main()
    except SystemExit as end:
        assert not end.code, (words, end.code)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both distributions, built by the project's own backend."""
    pytest.importorskip("hatchling", reason="hatchling is not installed: pip install '.[dev]'")
    out = tmp_path_factory.mktemp("dist")
    code = "import sys, hatchling.build as built; built.build_wheel(sys.argv[1]); built.build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(out)], cwd=ROOT, check=True, capture_output=True)
    return out


def needed() -> set[str]:
    files = {path for path in SOURCE.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    return {path.relative_to(SOURCE.parent).as_posix() for path in files}


def test_the_wheel_holds_the_package_with_its_templates_schemas_and_data(built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        names = set(wheel.namelist())
    assert needed() == {name for name in names if ".dist-info/" not in name}
    kinds = {Path(name).suffix for name in needed()}
    assert {".html", ".css", ".js", ".svg", ".json", ".toml", ".csv", ".pyi", ".typed"} <= kinds | {".typed"}
    assert any(name.endswith("py.typed") for name in names)
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_unpacked_wheel_simulates_attacks_and_reports(built: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        wheel.extractall(tmp_path / "unpacked")  # noqa: S202 - our own
    (tmp_path / "work").mkdir()
    done = subprocess.run(
        [sys.executable, "-I", "-c", TRIED, str(tmp_path / "unpacked")],
        cwd=tmp_path / "work",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert undelta.__version__ in done.stdout
    assert "strongest" in done.stdout
    assert "<html" in (tmp_path / "work" / "run" / "report.html").read_text(encoding="utf-8")


def test_the_sdist_holds_what_builds_the_wheel_and_no_results(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"src/{name}" for name in needed()} <= names
    needed_files = {"pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "CITATION.cff"}
    assert needed_files <= names
    assert {name.partition("/")[0] for name in names} <= {
        *needed_files,
        *("src", "CHANGELOG.md", "PKG-INFO", ".gitignore"),
    }


def test_the_index_page_is_the_readme_without_pictures_and_links_that_lead_nowhere_there(built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        (name,) = [name for name in wheel.namelist() if name.endswith("METADATA")]
        fields, _, page = wheel.read(name).decode().partition("\n\n")
    assert "Description-Content-Type: text/markdown" in fields
    assert "Project-URL" not in fields  # there is no public address yet
    assert page.startswith("# undelta\n")
    assert "*(Picture: Private photographs, and what two attacks reconstruct from the shared update.)*" in page
    assert all(target.startswith("https://") for target in re.findall(r"\]\(([^)\s]+)", page))
    assert "[questions]" not in page
    assert len(page) > 0.6 * len((ROOT / "README.md").read_text(encoding="utf-8"))


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == undelta.__version__
    assert citation["license"] == PROJECT["license"]
    assert citation["cff-version"] == "1.2.0"


def test_an_extra_that_a_message_names_exists() -> None:
    extras = set(PROJECT["optional-dependencies"])
    texts = [*SOURCE.rglob("*.py"), *(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "Dockerfile"]
    for path in texts:
        for words in re.findall(r"pip install [^\n]*?\[([\w,]+)\]", path.read_text(encoding="utf-8")):
            assert set(words.split(",")) <= extras, path


@pytest.mark.parametrize(
    "path", [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", *sorted((ROOT / "examples").rglob("*.yml"))]
)
def test_nothing_pretends_that_an_index_has_the_package(path: Path) -> None:
    assert not re.search(
        r"pip install (-U |--upgrade )?[\"']?undelta(\[|[\"'\s]|$)(?! ?@)", path.read_text(encoding="utf-8")
    )


def commands(value: Any) -> list[str]:
    """Every line of a workflow that calls undelta."""
    if isinstance(value, dict):
        return [line for key, inner in value.items() if key != "description" for line in commands(inner)]
    if isinstance(value, list):
        return [line for inner in value for line in commands(inner)]
    return [line for line in str(value).splitlines() if line.startswith("undelta ")]


@pytest.mark.parametrize("name", ["action.yml", "examples/ci/gitlab-ci.yml", "examples/ci/pre-commit-config.yaml"])
def test_what_runs_elsewhere_is_valid_and_calls_commands_that_exist(name: str) -> None:
    from typer.main import get_command

    from undelta.cli import app

    known = get_command(app).commands  # type: ignore[attr-defined]
    lines = commands(yaml.safe_load((ROOT / name).read_text(encoding="utf-8")))
    assert any(line.startswith("undelta audit ") for line in lines)
    for line in lines:
        _, command, *words = shlex.split(line, comments=True)
        options = {option for parameter in known[command].params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options
