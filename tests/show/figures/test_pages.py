"""Pages of figures in a real browser, read from files: each draws itself and runs no data."""

from pathlib import Path

import altair as alt
import polars as pl
import pytest
from browsing import open_page
from nearfree.log.names import Layout
from nearfree.show.figures.page import write_bundle
from nearfree.show.figures.stage import draw, save, specification
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

pytestmark = pytest.mark.browser
HOSTILE = "</script><img src=x onerror='document.title=1'>\u202e\"'&amp;"


def drawn_height(browser: webdriver.Chrome, path: Path) -> int:
    """Open a page, check that its console is empty, and return its drawing's height."""
    open_page(browser, path)
    shown = WebDriverWait(browser, 20).until(
        lambda page: page.find_element(By.CSS_SELECTOR, "#vis canvas, #vis svg")
    )
    assert browser.get_log("browser") == []
    return int(shown.size["height"])


def test_every_page_draws_itself(made: Layout, browser: webdriver.Chrome) -> None:
    """The shared script draws each figure under the page's own policy."""
    draw(made, "cpu", 0.2)
    pages = sorted((made.root / "figures/cpu").glob("*.html"))
    assert len(pages) > 15
    for path in pages:
        assert drawn_height(browser, path) > 150, path.name


def test_text_of_the_data_runs_nothing(browser: webdriver.Chrome, tmp_path: Path) -> None:
    """Markup in the data and in a title is drawn as text and does not run."""
    write_bundle(tmp_path)
    frame = pl.DataFrame({"name": [HOSTILE, "x" * 10_000], "n": [1, 2]})
    chart = alt.Chart(frame, title=alt.TitleParams(HOSTILE)).mark_point()
    chart = chart.encode(x="n:Q", y="name:N", tooltip="name:N")
    save(specification(chart), tmp_path / "scope" / "hostile")
    assert drawn_height(browser, tmp_path / "scope" / "hostile.html") > 0
    assert browser.title == HOSTILE
    assert browser.find_elements(By.TAG_NAME, "img") == []


def test_a_script_of_the_page_itself_is_refused(browser: webdriver.Chrome, tmp_path: Path) -> None:
    """The page's policy blocks any script but the shared one."""
    write_bundle(tmp_path)
    chart = alt.Chart(pl.DataFrame({"n": [1]}), title=alt.TitleParams("n")).mark_point()
    chart = chart.encode(x="n:Q")
    save(specification(chart), tmp_path / "scope" / "a")
    path = tmp_path / "scope" / "a.html"
    path.write_text(path.read_text().replace("<body>", "<body><script>document.title=1</script>"))
    browser.get(path.as_uri())
    assert browser.title == "n"
    assert any(
        "Content Security Policy" in entry["message"] for entry in browser.get_log("browser")
    )
