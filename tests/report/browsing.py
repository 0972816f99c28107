"""A browser, and what a reader does with it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.remote.webelement import WebElement

Browser = Chrome


@contextmanager
def chromium(profile: Path) -> Iterator[Browser]:
    """Headless Chromium with a fresh profile; skips the test where there is none."""
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not binary or not driver:
        pytest.skip("needs chromium and chromedriver on the PATH (Debian: apt install chromium chromium-driver)")
    options = ChromeOptions()
    options.binary_location = binary
    for word in (
        "--headless=new",
        "--no-sandbox",  # where tests run as root
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-component-update",
        "--no-first-run",
        f"--user-data-dir={profile}",
        "--window-size=1280,900",
    ):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with Chrome(options=options, service=Service(driver)) as found:
        yield found


def find(page: Browser | WebElement, selector: str) -> WebElement:
    return page.find_element("css selector", selector)


def find_all(page: Browser | WebElement, selector: str) -> list[WebElement]:
    return page.find_elements("css selector", selector)


def run(page: Browser, script: str, *arguments: Any) -> Any:
    return page.execute_script(f"return {script}", *arguments)


def let_it_scroll(page: Browser) -> None:
    """Wait until the page has drawn where it scrolled to: scrolling hides tips, a frame later."""
    page.execute_async_script("const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(done))")


def focused(page: Browser) -> WebElement:
    return page.switch_to.active_element


def attribute(element: WebElement, name: str) -> str:
    """As the document has it now."""
    return str(element.get_dom_attribute(name))


def value(slider: WebElement) -> int:
    return int(slider.get_property("value"))  # type: ignore[arg-type]
