"""The page on paper, by a browser that runs without a window."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from undelta.errors import ConfigError
from undelta.files import write_bytes

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")
QUIET = (
    "--headless",
    "--no-sandbox",  # root, as in containers, has none; the page can load nothing anyway
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--no-pdf-header-footer",
)
SECONDS = 300


def write_pdf(page: Path) -> Path:
    """Write a report as PDF beside it."""
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        raise ConfigError(
            "--pdf needs Chromium or Chrome on the PATH (Debian: apt install chromium); or open "
            f"{page} in any browser and print it"
        )
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "report.pdf"
        words = (
            browser,
            *QUIET,
            f"--user-data-dir={folder}/profile",
            f"--print-to-pdf={made}",
            page.resolve().as_uri(),
        )
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=False)  # noqa: S603
        except (OSError, subprocess.TimeoutExpired) as problem:
            raise ConfigError(f"{browser} could not print {page} ({problem}); open and print it yourself") from problem
        if not made.is_file():
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1][:200]
            raise ConfigError(f"{browser} could not print {page} ({reason}); open and print it yourself")
        write_bytes(page.with_suffix(".pdf"), made.read_bytes(), private=True)
    return page.with_suffix(".pdf")
