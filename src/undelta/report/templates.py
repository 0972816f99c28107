"""The templates of ``page/``: all text in HTML and SVG is escaped; Markdown and LaTeX have filters of their own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

PARTS = Path(__file__).parent / "page"
LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "±": r"$\pm$",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
}


def escape(text: str) -> str:
    """Text that Markdown is to show as text, on one line: no markup, no table cells, no HTML."""
    line = re.sub(r"([\\`*_\[\]|#!~])", r"\\\1", " ".join(text.split()))
    return line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def tex(text: str) -> str:
    """Text with LaTeX's own characters escaped, on one line."""
    return "".join(LATEX.get(character, character) for character in " ".join(text.split()))


def fill(name: str, **values: Any) -> str:
    """A template with its values."""
    environment = Environment(
        loader=FileSystemLoader(PARTS),
        autoescape=select_autoescape(["html", "svg"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"markdown": escape, "tex": tex, "class_name": _class_name}
    return environment.get_template(name).render(values)


def _class_name(text: str) -> str:
    """A word from a record as part of a class."""
    return re.sub(r"[^a-z]+", "-", text.lower())[:40]
