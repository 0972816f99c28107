"""The notebooks of examples/notebooks: run them, and write them as pages of the documentation.

    python scripts/notebooks.py          run each from top to bottom, keep its outputs, write its page
    python scripts/notebooks.py --pages  write the pages only

Running needs nbclient and ipykernel (extra `dev`). The pages, docs/notebooks/*.md with their pictures, are made of what
is in the notebooks, so that nobody has to run them to read the documentation.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
PAGES = ROOT / "docs" / "notebooks"


def execute(notebook: Path, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The notebook with fresh outputs, as plain values; raises where a cell does."""
    import nbformat
    from nbclient import NotebookClient

    content = nbformat.read(notebook, as_version=4)  # type: ignore[no-untyped-call]
    client = NotebookClient(content, timeout=1800, kernel_name="python3", record_timing=False, coalesce_streams=True)
    client.execute(env={**os.environ, **(environment or {})}, cwd=str(notebook.parent))
    values: dict[str, Any] = json.loads(nbformat.writes(content))  # type: ignore[no-untyped-call]
    values["metadata"] = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for cell in values["cells"]:
        for output in cell.get("outputs", []):
            # A picture says all; its text names an address in memory, which is another one in every run.
            if "image/png" in output.get("data", {}):
                output["data"] = {"image/png": output["data"]["image/png"]}
                output["metadata"] = {}
    return values


def save(notebook: Path, values: Mapping[str, Any]) -> None:
    """Write a notebook."""
    notebook.write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def page_of(notebook: Path) -> dict[str, bytes]:
    """The page and its pictures, by file name."""
    files: dict[str, bytes] = {}
    parts: list[str] = []
    title = ""
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            title = (re.findall(r"^#+ (.+)$", text, re.MULTILINE) or [title])[-1]
            parts.append(re.sub(r"\]\((\w+)\.ipynb\)", r"](\1.md)", text.replace("](../../docs/", "](../")))
            continue
        parts.append(f"```python\n{text}\n```")
        for output in cell["outputs"]:
            picture = output.get("data", {}).get("image/png")
            if picture:
                name = f"{notebook.stem}-{len(files) + 1}.png"
                files[name] = base64.b64decode("".join(picture))
                parts.append(f"![{title}]({name})")
            else:
                said = "".join(output["text"] if "text" in output else output["data"]["text/plain"])
                parts.append(f"```text\n{said.rstrip()}\n```")
    source = f"*Made of `{notebook.relative_to(ROOT).as_posix()}` by `python scripts/notebooks.py`.*"
    files[f"{notebook.stem}.md"] = ("\n\n".join([*parts, source]) + "\n").encode()
    return files


def main() -> None:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--pages", action="store_true", help="write the pages only")
    given = options.parse_args()
    PAGES.mkdir(exist_ok=True)
    for old in PAGES.iterdir():
        old.unlink()
    for notebook in NOTEBOOKS:
        if not given.pages:
            save(notebook, execute(notebook))
        for name, content in page_of(notebook).items():
            (PAGES / name).write_bytes(content)
            print(PAGES / name)  # noqa: T201


if __name__ == "__main__":
    main()
