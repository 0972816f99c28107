"""What a package index shows: the README without pictures and links into the repository, which lead nowhere there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class IndexPage(MetadataHookInterface):
    """Sets the long description."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Called by hatchling for every build."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": standalone(text)}


def standalone(text: str) -> str:
    """Pictures become their descriptions, and relative links their words."""
    text = re.sub(r"!\[([^\]]*)\]\((?!https://)[^)]*\)", r"*(Picture: \1.)*", text)
    return re.sub(r"\[([^\]]*)\]\((?!https://)[^)]*\)", r"\1", text)
