"""Hostile text, links and addresses of the report in a real browser, and its numbers' words."""

import json
import shlex
from pathlib import Path
from urllib.parse import urlencode

import pytest
from browsing import open_report, quiet, screen, until
from nearfree.show.page import inline
from selenium.webdriver.common.by import By
from show.page.hostile import HOSTILE, hostile_report

pytestmark = pytest.mark.browser
REPORT = "results/report/index.html"


def test_hostile_text_stays_text_in_a_browser(browser, tmp_path):
    """Text that tries to be markup runs nothing, moves nothing, and reads as it was written."""
    path = hostile_report(tmp_path)
    with screen(browser, 360):
        open_report(browser, path)
        browser.execute_script("dispatchEvent(new Event('beforeprint'))")
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 360
        rows = browser.find_elements(By.CSS_SELECTOR, "#rules a[data-row^='granularity:']")
        shown = set()
        for number in rows:
            cells = number.find_elements(By.XPATH, "ancestor::tr/td")
            text = cells[2].get_attribute("textContent")
            if text not in HOSTILE.values():
                continue
            row = number.get_attribute("data-row")
            browser.execute_script("arguments[0].click()", number)
            until(browser, f"document.getElementById('panel').dataset.row === '{row}'")
            panel = browser.find_element(By.ID, "panel-body")
            assert text in panel.get_attribute("textContent")
            assert not panel.find_elements(By.CSS_SELECTOR, "script, img, b")
            wide = browser.execute_script("return arguments[0].scrollWidth", panel)
            assert wide <= panel.size["width"]
            shown.add(text)
        assert shown == {*HOSTILE.values()}
        quiet(browser)


def test_hostile_links_open_nothing(built, browser):
    """With any address the page shows only its own content, and text as text."""
    for text in HOSTILE.values():
        open_report(browser, built / REPORT)
        ask = "location.hash = new URLSearchParams({ row: arguments[0], kind: arguments[0] })"
        browser.execute_script(ask, f"boundaries:{text}")
        until(browser, "document.getElementById('panel').dataset.row")
        assert text in browser.find_element(By.ID, "panel").get_attribute("textContent")
        quiet(browser)


@pytest.mark.parametrize(
    "row",
    [
        "boundaries:x'; touch /tmp/pwned; '",
        "cpu/x/1-00000000.1#1'; touch /tmp/pwned; '",
        "cpu/x/1-00000000.1#1",
        "config/x'; touch /tmp/pwned; '",
    ],
)
def test_no_command_is_made_of_the_address(built, browser, row):
    """What the page does not hold has no command to be copied, and no link to a file."""
    open_report(browser, built / REPORT, f"#{urlencode({'row': row})}")
    until(browser, "document.getElementById('panel').dataset.row")
    panel = browser.find_element(By.ID, "panel-body")
    assert "Not in this page" in panel.text
    assert row in panel.text
    assert not panel.find_elements(By.CSS_SELECTOR, ".command, a")


def test_a_command_s_words_are_quoted(browser):
    """A shell reads any id as one word."""
    source = (Path(inline.__file__).parent / "assets" / "words.js").read_text()
    browser.get("about:blank")
    for text in (*HOSTILE.values(), "a'b; $(x) `y` \\ \n!", "-x", "~", "", "a:b/c.1-2@d#3"):
        quoted = browser.execute_script(f"{source}; return shellQuoted(arguments[0])", text)
        assert shlex.split(f"nearfree {quoted}") == ["nearfree", text]
    assert quoted == text


def test_a_number_stands_with_its_name_and_unit(browser):
    """Tokens a second are no seconds, and a number in a title has its name before it."""
    fields = json.dumps(inline.facts()["FIELDS"])
    source = (Path(inline.__file__).parent / "assets" / "words.js").read_text()
    browser.get("about:blank")
    ask = f"const FIELDS = {fields}; {source}; return "
    for column, name_and_unit in {
        "tokens_s": ["speed", "tokens/s"],
        "predicted_tokens_s": ["predicted", "tokens/s"],
        "tokens_s_low": ["speed, low end, tokens/s", ""],
        "wall_s": ["wall", "s"],
        "latency_us": ["T(N)", "µs"],
        "bytes": ["bytes", "bytes"],
    }.items():
        words = (
            "[knownName(arguments[0]) || nameAndUnit(arguments[0]).words, "
            "nameAndUnit(arguments[0]).unit]"
        )
        assert browser.execute_script(ask + words, column) == name_and_unit
    row = {"setting_key": "a", "backend": "llama_cpp", "context": 64, "threads": 2, "batch": None}
    title = "subject({ key: ['setting_key'], at: (name) => arguments[0][name] ?? null }, 0)"
    assert browser.execute_script(ask + title, row) == "llama_cpp, L 64, threads 2"


def test_an_interval_of_a_prediction_ends_where_it_is_looked_at(browser):
    """An end at the largest N may lie beyond it, in the explorer as in the table of models."""
    source = (Path(inline.__file__).parent / "assets" / "words.js").read_text()
    browser.get("about:blank")
    largest = inline.facts()["LARGEST"]
    ask = f"const LARGEST = {largest}; {source}; return predictionInterval(arguments[0])"
    for low, high, printed in ((3, 40, "3 to 40"), (3, 512, "3 to ≥ 512"), (None, None, "")):
        assert browser.execute_script(ask, {"low": low, "high": high}) == printed


@pytest.mark.parametrize("name", ["claims", "tolerance", "gallery"])
def test_a_link_from_outside_lands_on_its_section(built, browser, name):
    """Also below the explorer, which is filled after the page has loaded."""
    open_report(browser, built / REPORT, f"#{name}")
    top = browser.execute_script(
        "return document.getElementById(arguments[0]).getBoundingClientRect().top", name
    )
    assert 0 <= top < 150


@pytest.mark.parametrize("address", ["platform=cpu&epsilon=0.1", "platfrom=cpu", "claim"])
def test_a_link_to_a_choice_lands_on_the_explorer(built, browser, address):
    """A choice is in view, and so is the banner over one that is mistyped, or a section that is."""
    open_report(browser, built / REPORT, f"#{address}")
    top = browser.execute_script(
        "return document.getElementById('explorer').getBoundingClientRect().top"
    )
    assert 0 <= top < 150
    banners = browser.find_elements(By.CSS_SELECTOR, "#answered .banner")
    assert len(banners) == (address in ("platfrom=cpu", "claim"))
    name = address.partition("=")[0]
    assert all(f"no choice is called {name}: " in banner.text for banner in banners)
