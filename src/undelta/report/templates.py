"""The templates of ``page/``: all text in HTML and SVG is escaped; Markdown and LaTeX have filters of their own."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from undelta.trials.config import to_toml

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
    **{character: f"{{{character}}}" for character in "[]*"},  # behind the end of a row they would be its options
}


def escape(text: str) -> str:
    """Text that Markdown is to show as text, on one line: no markup, no table cells, no HTML."""
    line = re.sub(r"([\\`*_\[\]|#!~])", r"\\\1", " ".join(text.split()))
    return line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def tex(text: str) -> str:
    """Text with LaTeX's own characters escaped, on one line."""
    return "".join(LATEX.get(character, character) for character in " ".join(text.split()) if character.isprintable())


def class_name(text: str) -> str:
    """A word from a record as part of a class."""
    return re.sub(r"[^a-z]+", "-", text.lower())[:40]


_TEMPLATES = Environment(
    loader=FileSystemLoader(PARTS),
    autoescape=select_autoescape(["html", "svg"]),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_TEMPLATES.filters |= {"markdown": escape, "tex": tex, "class_name": class_name, "quote": shlex.quote, "toml": to_toml}


def fill(name: str, **values: Any) -> str:
    """A template with its values."""
    return _TEMPLATES.get_template(name).render(values)
