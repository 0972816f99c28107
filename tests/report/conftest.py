"""One small audit for all tests of the report."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from undelta.report import write_report
from undelta.report.read import Audit, read_audit

from .audits import TOML, AuditCopy, run_audit
from .browsing import Browser, chromium


@pytest.fixture(scope="session", autouse=True)
def _no_lpips_weights() -> Iterator[None]:
    """What is installed on a machine must not change what is tested."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("UNDELTA_LPIPS", raising=False)
        patch.setenv("XDG_CACHE_HOME", os.devnull)
        yield


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its directory: read it, do not change it."""
    return run_audit(tmp_path_factory.mktemp("audits") / "clinic", TOML)


@pytest.fixture
def audit(finished: Path, tmp_path: Path) -> AuditCopy:
    """A copy to change."""
    return AuditCopy(path=Path(shutil.copytree(finished, tmp_path / "audit")))


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One for all tests: it takes seconds to start."""
    with chromium(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="session")
def written(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The audit's page."""
    return write_report(shutil.copytree(finished, tmp_path_factory.mktemp("browser") / "audit"))


@pytest.fixture
def opened(browser: Browser, written: Path) -> Browser:
    """The page, opened anew in a window of usual size."""
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.get(written.as_uri())
    return browser


@pytest.fixture
def read(finished: Path) -> Audit:
    """The audit as values."""
    return read_audit(finished)
