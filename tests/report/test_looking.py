"""The page in a real browser, used as a reader would: tables, pictures and charts, with mouse and keys."""

from __future__ import annotations

import re

from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from undelta.report.read import Audit

from .audits import TRIALS
from .browsing import Browser, attribute, find, find_all, focused, let_it_scroll, run, value

# Tables


def column(page: Browser, number: int) -> list[str]:
    cells = (
        "[...document.querySelectorAll('#trials tbody tr')].map((row) => row.cells[arguments[0]].textContent.trim())"
    )
    return list(run(page, cells, number))


def numbers(texts: list[str]) -> list[float]:
    return [float(text) for text in texts if text != "n/a"]


def test_a_click_on_a_title_sorts_and_another_one_sorts_the_other_way(opened: Browser) -> None:
    title = find_all(opened, "#trials thead th")[4]
    before = column(opened, 4)
    assert numbers(before) != sorted(numbers(before))
    find(title, "button").click()
    rising = column(opened, 4)
    assert attribute(title, "aria-sort") == "ascending"
    assert numbers(rising) == sorted(numbers(before))
    find(title, "button").click()
    falling = column(opened, 4)
    assert attribute(title, "aria-sort") == "descending"
    assert numbers(falling) == sorted(numbers(before), reverse=True)
    # What was not measured is neither best nor worst.
    assert rising[-8:] == falling[-8:] == ["n/a"] * 8


def test_keys_sort_too_and_words_are_sorted_as_words(opened: Browser) -> None:
    title = find_all(opened, "#trials thead th")[2]
    run(opened, "arguments[0].focus()", find(title, "button"))
    focused(opened).send_keys(Keys.ENTER)
    assert column(opened, 2) == sorted(column(opened, 2))
    focused(opened).send_keys(Keys.SPACE)
    assert column(opened, 2) == sorted(column(opened, 2), reverse=True)
    assert len(find_all(opened, "#trials [aria-sort]")) == 1


def test_the_filter_keeps_the_rows_that_have_all_words(opened: Browser) -> None:
    box = find(opened, "#filter")
    box.send_keys("awa smaller")
    shown = [row.text for row in find_all(opened, "#trials tbody tr") if row.is_displayed()]
    assert len(shown) == 4
    assert all("awa" in row and "smaller" in row for row in shown)
    assert find(opened, "#filtered").text == f"4 of {TRIALS} trials"
    box.clear()
    box.send_keys("CLOSED form")  # words of a reason
    assert find(opened, "#filtered").text == f"8 of {TRIALS} trials"
    box.send_keys(Keys.CONTROL, "a", Keys.NULL, Keys.DELETE)
    assert find(opened, "#filtered").text == f"{TRIALS} of {TRIALS} trials"


def test_a_row_leads_to_the_command_that_repeats_it(opened: Browser, read: Audit) -> None:
    find(opened, "#trials tbody a").click()
    details = find(opened, "#trial-0")
    assert details.get_property("open") is True
    assert f"undelta audit trial-{read.records[0].key}.toml" in find(details, "pre").text


# Pictures


def test_arrow_keys_move_the_slider_through_the_iterates(opened: Browser, read: Audit) -> None:
    grid = find(opened, ".grid")
    slider, tile = find(grid, "input[type=range]"), find(grid, "[data-row] .tile svg")
    state = find(grid, "[data-row]").find_element("xpath", "preceding-sibling::p[1]/span")
    record = read.records[0]
    assert state.text.startswith(f"result after {record.iterations} iterations: PSNR {record.psnr:.2f} dB")
    seen = {attribute(tile, "viewBox") + attribute(find(tile, "use"), "href"): tile.screenshot_as_png}
    slider.send_keys(Keys.ARROW_LEFT)
    last = record.curve[-1]
    assert find(grid, "output").text == f"iteration {last.iteration}"
    assert state.text == f"iteration {last.iteration}: PSNR {last.psnr:.2f} dB"
    seen[attribute(tile, "viewBox") + attribute(find(tile, "use"), "href")] = tile.screenshot_as_png
    slider.send_keys(Keys.HOME)
    first = record.curve[0]
    assert state.text == f"iteration 0: PSNR {first.psnr:.2f} dB"
    seen[attribute(tile, "viewBox") + attribute(find(tile, "use"), "href")] = tile.screenshot_as_png
    result, nearly, noise = seen.values()
    assert len(seen) == 3  # three places of the sheets; the last iterate may look like the result ...
    assert noise not in (result, nearly)  # ... but the noise at the start is another picture on the screen
    slider.send_keys(Keys.END)
    assert find(grid, "output").text == "result"
    assert tile.screenshot_as_png == result


def test_the_mouse_moves_the_slider(opened: Browser) -> None:
    grid = find(opened, ".grid")
    slider, tile = find(grid, "input[type=range]"), find(grid, "[data-row] .tile svg")
    before = value(slider), tile.screenshot_as_png
    ActionChains(opened).move_to_element(slider).click().perform()
    assert 0 < value(slider) < before[0]
    assert re.fullmatch(r"iteration \d+", find(grid, "output").text)
    assert tile.screenshot_as_png != before[1]


def test_originals_stay_while_the_slider_moves(opened: Browser) -> None:
    grid = find(opened, ".grid")
    original = find(grid, "[data-originals] .tile svg")
    before = original.screenshot_as_png
    find(grid, "input[type=range]").send_keys(Keys.HOME)
    assert original.screenshot_as_png == before


def test_play_runs_from_noise_to_the_result(opened: Browser) -> None:
    grid = find(opened, ".grid")
    script = """
    const [grid, done] = arguments, seen = [], output = grid.querySelector("output");
    new MutationObserver(() => {
      seen.push(output.textContent);
      if (output.textContent === "result") done(seen);
    }).observe(output, { childList: true });
    grid.querySelector(".play").click();
    """
    opened.set_script_timeout(30)
    seen = opened.execute_async_script(script, grid)
    assert seen[0] == "iteration 0"
    assert len(seen) == int(attribute(find(grid, "input[type=range]"), "max")) + 1
    assert find(grid, ".play").text == "Play"


def test_metrics_of_an_image_appear_on_hover_and_on_focus(opened: Browser, read: Audit) -> None:
    tiles = find_all(opened, ".grid [data-row] .tile")
    tip = find(opened, "#tip")
    assert not tip.is_displayed()
    run(opened, "arguments[0].scrollIntoView({ block: 'center' })", tiles[0])
    let_it_scroll(opened)
    ActionChains(opened).move_to_element(tiles[0]).perform()
    assert f"PSNR {read.records[0].images[0].psnr:.2f} dB" in tip.text
    ActionChains(opened).move_to_element(find(opened, "h1")).perform()
    run(opened, "arguments[0].focus()", tiles[0])
    focused(opened).send_keys(Keys.TAB)
    assert tip.is_displayed()
    assert f"PSNR {read.records[0].images[1].psnr:.2f} dB" in tip.text


def test_a_click_enlarges_and_escape_closes(opened: Browser) -> None:
    tile = find(opened, ".grid [data-row] .tile")
    viewer = find(opened, "#viewer")
    tile.click()
    assert viewer.is_displayed()
    large = find(opened, "#viewer-reconstruction")
    assert large.rect["width"] > 2 * find(tile, "svg").rect["width"]
    title, place = find(opened, "#viewer-title").text, attribute(large, "viewBox")
    assert title == "awa, image 1"
    ActionChains(opened).send_keys(Keys.ARROW_RIGHT).perform()
    assert find(opened, "#viewer-title").text == "awa, image 2"
    assert attribute(large, "viewBox") != place
    ActionChains(opened).send_keys(Keys.ESCAPE).perform()
    assert not viewer.is_displayed()
    assert attribute(focused(opened), "data-index") == "1"


def test_keys_open_the_dialog_and_its_button_closes_it(opened: Browser) -> None:
    run(opened, "arguments[0].focus()", find(opened, ".grid [data-originals] .tile"))
    focused(opened).send_keys(Keys.ENTER)
    assert find(opened, "#viewer").is_displayed()
    assert find(opened, "#viewer-title").text == "Private original 1"
    assert not find(opened, "#viewer-guess").is_displayed()
    find(opened, "#viewer-close").click()
    assert not find(opened, "#viewer").is_displayed()


def test_another_seed_shows_another_batch(opened: Browser) -> None:
    group = find(opened, ".group")
    first, second = find_all(group, ".grid")
    assert (first.is_displayed(), second.is_displayed()) == (True, False)
    find_all(group, ".seeds fieldset input")[1].click()
    assert (first.is_displayed(), second.is_displayed()) == (False, True)


# Charts


def test_curves_switch_from_iterations_to_seconds(opened: Browser) -> None:
    group = find(opened, ".group")
    over = {attribute(panel, "data-panel"): panel for panel in find_all(group, ".charts")}
    assert over["iterations"].is_displayed()
    assert not over["seconds"].is_displayed()
    find(group, "input[value=seconds]").click()
    assert not over["iterations"].is_displayed()
    assert over["seconds"].is_displayed()


def test_arrow_keys_read_a_chart_aloud(opened: Browser, read: Audit) -> None:
    drawn = find(opened, ".group .chart svg")
    run(opened, "arguments[0].focus()", drawn)
    let_it_scroll(opened)  # which focus makes it do
    ActionChains(opened).send_keys(Keys.ARROW_RIGHT).perform()
    first = read.records[0].history[0]
    assert (
        f"awa: seed 0, iteration 0, {first.seconds:.1f} s: mismatch {first.mismatch:.4g}" == find(opened, "#tip").text
    )
    ActionChains(opened).send_keys(Keys.ARROW_RIGHT).perform()
    assert f"iteration {read.records[0].history[1].iteration}," in find(opened, "#tip").text


def test_pointing_at_a_mark_says_its_value(opened: Browser) -> None:
    mark = find(opened, ".group .chart use")
    run(opened, "arguments[0].scrollIntoView({ block: 'center' })", mark)
    let_it_scroll(opened)
    ActionChains(opened).move_to_element(mark).perform()
    assert find(opened, "#tip").text == f"awa: {attribute(mark, 'data-tip')}"
