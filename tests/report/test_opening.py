"""The page in a real browser: it opens soon, keeps to itself, and suits its reader."""

from __future__ import annotations

import http.server
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.common.exceptions import NoAlertPresentException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from undelta.report import write_report

from .audits import TRIALS, AuditCopy
from .browsing import Browser, attribute, find, find_all, focused, run
from .test_page import HOSTILE

OPEN_SECONDS = 2.0
OPENED = """
const [done] = arguments;
const look = () => {
  const { loadEventEnd } = performance.getEntriesByType("navigation")[0];
  if (loadEventEnd) done(loadEventEnd);
  else setTimeout(look, 5);
};
look();
"""


# Opening


def test_it_opens_soon_and_without_a_word_on_the_console(browser: Browser, written: Path) -> None:
    browser.get_log("browser")  # type: ignore[no-untyped-call]
    times = []
    for _ in range(3):  # the best of three: the machine may be busy with something else
        browser.get(written.as_uri())
        times.append(browser.execute_async_script(OPENED) / 1000)
        assert browser.get_log("browser") == []  # type: ignore[no-untyped-call]
    assert 0 < min(times) < OPEN_SECONDS
    assert len(find_all(browser, "#trials tbody tr")) == TRIALS


def test_it_asks_for_nothing_but_itself(browser: Browser, written: Path) -> None:
    browser.get("about:blank")
    browser.get_log("performance")  # type: ignore[no-untyped-call]
    browser.get(written.as_uri())
    find(browser, ".grid input[type=range]").send_keys(Keys.HOME)
    find(browser, ".tile").click()
    messages = [
        json.loads(record["message"])["message"]
        for record in browser.get_log("performance")  # type: ignore[no-untyped-call]
    ]
    asked = [
        message["params"]["request"]["url"] for message in messages if message["method"] == "Network.requestWillBeSent"
    ]
    assert written.as_uri() in asked
    assert {url for url in asked if not url.startswith("data:")} == {written.as_uri()}


class Listener(http.server.BaseHTTPRequestHandler):
    """Remembers that somebody asked."""

    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the library's name)
        pass


@pytest.fixture
def listener() -> Iterator[tuple[str, list[str]]]:
    """A server on this machine, and what it was asked for."""
    handler = type("Asked", (Listener,), {"asked": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", handler.asked  # type: ignore[attr-defined]
        server.shutdown()


SEND = """
const [url, done] = arguments;
const image = new Promise((end) => { const it = new Image(); it.onload = it.onerror = end; it.src = url + "/image"; });
const style = document.createElement("link");
style.rel = "stylesheet"; style.href = url + "/style"; document.head.append(style);
Promise.allSettled([fetch(url + "/fetch"), image]).then(() => done("tried"));
"""


def test_the_policy_lets_nothing_out_even_if_a_script_tries(
    opened: Browser, listener: tuple[str, list[str]], written: Path, tmp_path: Path
) -> None:
    url, asked = listener
    assert opened.execute_async_script(SEND, url) == "tried"
    assert asked == []
    # Without its policy the same opened would let the same script reach the server.
    naked = tmp_path / "naked.html"
    naked.write_text(re.sub(r"<meta http-equiv[^>]*>", "", written.read_text("utf-8")), "utf-8")
    opened.get(naked.as_uri())
    assert opened.execute_async_script(SEND, url) == "tried"
    assert {"/image", "/style"} <= set(asked)


def test_a_hostile_name_stays_text(browser: Browser, audit: AuditCopy) -> None:
    audit.rename(HOSTILE)
    for path in audit.path.glob("trials/*/*.json"):
        audit.change(path, attack=HOSTILE)
    browser.get_log("browser")  # type: ignore[no-untyped-call]
    browser.get(write_report(audit.path).as_uri())
    with pytest.raises(NoAlertPresentException):
        _ = browser.switch_to.alert.text
    WebDriverWait(browser, 10).until(lambda page: run(page, "document.scripts.length"))  # a busy machine takes a while
    assert run(browser, "document.scripts.length") == 2
    assert run(browser, "document.querySelectorAll('[onerror], img').length") == 0
    assert browser.get_log("browser") == []  # type: ignore[no-untyped-call]
    shown = run(browser, "document.querySelector('#trials tbody th').textContent")
    assert shown.strip() == HOSTILE.strip()
    find(browser, "[data-row] .tile").click()
    assert run(browser, "document.getElementById('viewer-title').textContent").startswith(HOSTILE)


# The page


def brightness(page: Browser) -> float:
    color = run(page, "getComputedStyle(document.body).backgroundColor")
    return sum(map(float, re.findall(r"\d+", color)[:3])) / 3


def test_the_dark_theme_can_be_chosen_and_left(opened: Browser) -> None:
    button = find(opened, "#theme")
    assert brightness(opened) > 200
    assert attribute(button, "aria-pressed") == "false"
    assert button.text == "Dark"
    button.click()
    assert brightness(opened) < 60
    assert (attribute(button, "aria-pressed"), button.text) == ("true", "Light")
    button.click()
    assert brightness(opened) > 200


def test_the_theme_follows_the_system(opened: Browser) -> None:
    for scheme, dark in (("dark", True), ("light", False)):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        assert (brightness(opened) < 60) == dark
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_the_first_tab_is_a_way_past_the_navigation(opened: Browser) -> None:
    ActionChains(opened).send_keys(Keys.TAB).perform()
    skip = focused(opened)
    assert attribute(skip, "class") == "skip"
    assert skip.rect["x"] >= 0
    skip.send_keys(Keys.ENTER)
    assert attribute(focused(opened), "id") == "main"


@pytest.mark.parametrize("width", [320, 400, 800])
def test_a_narrow_window_scrolls_within_tables_not_sideways(opened: Browser, width: int) -> None:
    metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    assert run(opened, "document.documentElement.scrollWidth") <= width
    if width < 640:  # tables become lists of named values, and none is cut
        whole = (
            "[...document.querySelectorAll('#summary .scroller')].every((one) => one.scrollWidth <= one.clientWidth)"
        )
        assert run(opened, whole)
    opened.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_on_paper_every_seed_is_shown_in_light_colors_and_nothing_to_click(opened: Browser) -> None:
    find(opened, "#theme").click()
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert brightness(opened) > 200
        assert all(grid.is_displayed() for grid in find_all(opened, ".grid"))
        for selector in ("nav", ".player", "#filter", "#theme", ".switch", ".copy", "#summary .on-screen"):
            assert not find(opened, selector).is_displayed()
        assert find(opened, "#private").is_displayed()
        run(opened, "dispatchEvent(new Event('beforeprint'))")
        assert all(command.is_displayed() for command in find_all(opened, "#repeat pre"))
        run(opened, "dispatchEvent(new Event('afterprint'))")
        assert run(opened, "document.querySelectorAll('details[open]').length") == 0
    finally:
        opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
