"""The report and the figures in a real browser, from files, without a network."""

import base64
import shutil
from pathlib import Path

import pytest
from browsing import open_page, open_report, quiet, screen, until
from nearfree.show.figures.listing import OUTLOOK, read_figures
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

pytestmark = pytest.mark.browser
REPORT = "results/report/index.html"
MOST_BYTES, MOST_MS = 8_000_000, 2_000


def put_in(browser: webdriver.Chrome) -> None:
    """Put every drawing into the page, as before printing."""
    until(browser, "document.documentElement.dataset.figures")
    browser.execute_script("dispatchEvent(new Event('beforeprint'))")


def test_the_report_opens_from_a_file(built, browser):
    """The page loads without a network or an error, shows its answer, and each of its figures."""
    open_report(browser, built / REPORT)
    assert browser.find_element(By.TAG_NAME, "h1").text == "How many positions are near-free here?"
    put_in(browser)
    figures = browser.find_elements(By.CSS_SELECTOR, "figure svg:not(.later)")
    listed = [read_figures(built / f"results/figures/{s}").figures for s in ("cpu", "public")]
    assert len(figures) == sum(map(len, listed))
    assert all(2500 > figure.size["height"] > 100 for figure in figures)
    quiet(browser)


def test_the_report_is_small_and_soon_usable(built, browser):
    """It is one file of a few megabytes, and its explorer answers within two seconds."""
    assert (built / REPORT).stat().st_size < MOST_BYTES
    times = []
    for _ in range(3):
        open_report(browser, built / REPORT)
        times.append(int(until(browser, "document.documentElement.dataset.readyMs")))
    assert min(times) < MOST_MS


def test_figures_of_models_say_that_they_are_predicted(built, browser):
    """Nothing that was only predicted can be taken for measured."""
    open_report(browser, built / REPORT)
    put_in(browser)
    listed = read_figures(built / "results/figures/public").figures
    predicted = [figure for figure in listed if figure.about == OUTLOOK]
    assert predicted
    for figure in predicted:
        drawn = browser.find_element(By.ID, f"figure-public-{figure.name}")
        text = drawn.find_element(By.TAG_NAME, "svg").get_attribute("textContent")
        assert "Predicted, not measured" in text or "M_attn as printed" in text
        assert "measured here" not in text


def test_every_figure_of_a_machine_shows_its_data(built, browser):
    """Each drawing of this machine holds marks for its measured rows."""
    open_report(browser, built / REPORT)
    put_in(browser)
    for figure in browser.find_elements(By.CSS_SELECTOR, "[id^='figure-cpu-'] svg"):
        marks = figure.find_elements(
            By.CSS_SELECTOR, "[aria-roledescription$='mark container'] path"
        )
        assert len(marks) > 3
        text = figure.get_attribute("textContent").lower()
        assert "measured" in text or "counted" in text


OUTSIDE = """
return [...document.querySelectorAll('figure svg:not(.later)')].flatMap((drawn) => {
  const whole = drawn.getBoundingClientRect();
  return [...drawn.querySelectorAll('text')].filter((text) => {
    const { left, right, top, bottom } = text.getBoundingClientRect();
    return left < whole.left - 1 || right > whole.right + 1 || top < whole.top - 1
      || bottom > whole.bottom + 1;
  }).map((text) => `${drawn.closest('figure').id}: ${text.textContent}`);
});
"""


def test_no_text_of_a_figure_leaves_its_drawing(built, browser):
    """With any fonts of the machine, each title and legend is inside its drawing."""
    open_report(browser, built / REPORT)
    put_in(browser)
    assert browser.execute_script("return document.querySelectorAll('figure svg text').length")
    assert browser.execute_script(OUTSIDE) == []


NARROW = """
return [...document.querySelectorAll('figure svg:not(.later)')].filter((drawn) =>
  drawn.getBoundingClientRect().width < drawn.width.baseVal.value - 1).length;
"""
BESIDE = """
return [...document.querySelectorAll('.claim[open] td')].filter((cell) =>
  cell.getBoundingClientRect().right > document.documentElement.clientWidth).length;
"""


def test_a_phone_shows_drawings_in_their_size_and_claims_whole(built, browser):
    """A drawing is scrolled, not shrunk until nobody reads it, and a claim's reason is in view."""
    with screen(browser, 390):
        open_report(browser, built / REPORT)
        put_in(browser)
        browser.execute_script(
            "document.querySelectorAll('.claim').forEach((c) => { c.open = true })"
        )
        assert browser.execute_script("return document.querySelectorAll('figure svg').length")
        assert browser.execute_script("return document.querySelectorAll('.claim[open] td').length")
        assert browser.execute_script(NARROW) == 0
        assert browser.execute_script(BESIDE) == 0


SCROLLED = """
return [...document.querySelectorAll('main details:not(.claim) > .scroll')].map((box) => {
  box.scrollTop = box.scrollHeight;
  const outer = box.getBoundingClientRect();
  const head = box.querySelector("th").getBoundingClientRect();
  return [outer.height / innerHeight, head.top - outer.top];
});
"""


def test_a_long_table_keeps_its_head_and_its_scroll_bar_in_view(built, browser):
    """A table that is unfolded is no higher than the screen, and its head stays on top of it."""
    open_report(browser, built / REPORT)
    put_in(browser)
    boxes = browser.execute_script(SCROLLED)
    assert max(height for height, _ in boxes) > 0.8
    for height, above in boxes:
        assert height < 0.87
        assert abs(above) < 2


def test_a_number_opens_by_keyboard(built, browser):
    """Enter opens the panel and Escape closes it; the focus goes there and comes back."""
    open_report(browser, built / REPORT)
    number = browser.find_element(By.CSS_SELECTOR, "#answer a[data-row]")
    row = number.get_attribute("data-row")
    number.send_keys(Keys.ENTER)
    until(browser, f"document.getElementById('panel').dataset.row === '{row}'")
    assert browser.execute_script("return document.activeElement.id") == "panel-title"
    inside = browser.find_element(By.CSS_SELECTOR, "#panel .made a[data-row]")
    below = inside.get_attribute("data-row")
    inside.send_keys(Keys.ENTER)
    until(browser, f"document.getElementById('panel').dataset.row === '{below}'")
    crumbs = browser.find_elements(By.CSS_SELECTOR, "#panel .crumbs a")
    assert [crumb.get_attribute("data-row") for crumb in crumbs] == [row]
    browser.switch_to.active_element.send_keys(Keys.ESCAPE)
    until(browser, "document.getElementById('panel').hidden")
    assert browser.switch_to.active_element == number
    assert "row=" not in browser.current_url


LATENCIES = """
return [...document.querySelectorAll('#explorer details tr td:nth-child(2)')]
  .map((cell) => cell.textContent);
"""


def test_a_latency_is_read_at_a_glance(built, browser):
    """The explorer's T(N) has four digits, or whole microseconds: no more than is known."""
    open_report(browser, built / REPORT)
    latencies = browser.execute_script(LATENCIES)
    assert latencies
    for text in latencies:
        digits = text.replace(".", "").lstrip("0")
        assert len(digits) == 4 or (len(digits) > 4 and "." not in text), text


def test_the_way_back_closes_the_panel(built, browser):
    """Each opened row is an entry of the browser's history, with its own link."""
    open_report(browser, built / REPORT)
    number = browser.find_element(By.CSS_SELECTOR, "#answer a[data-row]")
    row = number.get_attribute("data-row")
    number.click()
    until(browser, f"document.getElementById('panel').dataset.row === '{row}'")
    link = browser.current_url
    browser.back()
    until(browser, "document.getElementById('panel').hidden")
    open_report(browser, built / REPORT, f"#{link.partition('#')[2]}")
    until(browser, f"document.getElementById('panel').dataset.row === '{row}'")


@pytest.mark.parametrize("width", [360, 1200])
def test_the_page_does_not_scroll_sideways(built, browser, width):
    """Wide tables scroll inside themselves, also on a phone with all open."""
    with screen(browser, width):
        open_report(browser, built / REPORT)
        for kind in ("observed", "predicted"):
            box = browser.find_element(By.CSS_SELECTOR, f"input[value='{kind}']")
            browser.execute_script("arguments[0].click()", box)
            until(browser, f"document.getElementById('answered').dataset.shown === '{kind}'")
            put_in(browser)
            assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        number = browser.find_element(By.CSS_SELECTOR, "#answer a[data-row]")
        browser.execute_script("arguments[0].click()", number)
        until(browser, "document.getElementById('panel').dataset.row")
        panel = browser.find_element(By.ID, "panel-body")
        assert panel.size["width"] <= width
        inside = browser.execute_script("return arguments[0].scrollWidth", panel)
        assert inside <= panel.size["width"]


CONTRAST = """
const shade = (value) => {
  const [r, g, b] = value.match(/[\\d.]+/g).slice(0, 3).map((part) => {
    const share = Number(part) / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const paper = shade(getComputedStyle(document.body).backgroundColor);
return [...document.querySelectorAll('h1, .note, td, thead th, small, a, .verdict, .tag, dt, dd')]
  .map((each) => shade(getComputedStyle(each).color))
  .map((ink) => (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05))
  .reduce((least, each) => Math.min(least, each));
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_both_colour_schemes(built, browser, scheme):
    """Text has the contrast that WCAG asks for at level AA, on light and on dark ground."""
    with screen(browser, 1200, scheme):
        open_report(browser, built / REPORT)
        ground = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(255, 255, 255)") == (scheme == "light")
        assert browser.execute_script(CONTRAST) >= 4.5


def test_the_first_screen_cuts_nothing(built, browser):
    """On a wide screen no table of the first screen has to be moved to be read."""
    with screen(browser, 1400):
        open_report(browser, built / REPORT)
        tables = "[...document.querySelectorAll('#answer .scroll')]"
        assert browser.execute_script(f"return {tables}.length")
        assert browser.execute_script(
            f"return {tables}.every(each => each.scrollWidth <= each.clientWidth)"
        )


def test_the_page_prints(built, browser):
    """A print has every fold open and every figure in it, and folds them again after."""
    open_report(browser, built / REPORT)
    until(browser, "document.documentElement.dataset.figures")
    folded = browser.execute_script(
        "return document.querySelectorAll('main details:not([open])').length"
    )
    assert folded
    printed = browser.execute_cdp_cmd("Page.printToPDF", {})
    assert base64.b64decode(printed["data"]).startswith(b"%PDF")
    assert not browser.find_elements(By.CSS_SELECTOR, "svg.later")
    until(browser, f"document.querySelectorAll('main details:not([open])').length === {folded}")


def test_a_print_says_what_its_answer_is_about(built, browser):
    """On paper, too, the choices of the explorer are above its answer."""
    open_report(browser, built / REPORT)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        chosen = browser.find_elements(By.CSS_SELECTOR, "#choices select")
        assert chosen
        assert all(element.is_displayed() for element in chosen)
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_the_page_tells_its_numbers_without_a_script(built, browser):
    """Without scripts the page has tables, no empty frames, and a remedy."""
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        open_page(browser, built / REPORT)
        assert "nearfree audit ROW" in browser.find_element(By.TAG_NAME, "noscript").text
        assert len(browser.find_elements(By.CSS_SELECTOR, "#answer a[data-row]")) > 3
        figures = browser.find_elements(By.TAG_NAME, "figure")
        assert figures
        assert not any(element.is_displayed() for element in figures)
        assert not browser.find_element(By.ID, "explorer").is_displayed()
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


@pytest.mark.parametrize(
    "name", ["dense_ffn_latency_against_n", "dense_ffn_nmax_against_batch", "dense_ffn_sensitivity"]
)
def test_interactive_figures_work_offline(built, browser, name):
    """Each interactive figure of the report's folder draws itself with the script beside it."""
    open_page(browser, built / "results/report/figures/cpu" / f"{name}.html")
    browser.implicitly_wait(5)
    drawn = browser.find_element(By.CSS_SELECTOR, "#vis canvas, #vis svg")
    browser.implicitly_wait(0)
    assert drawn.size["height"] > 200


def test_the_report_s_folder_stands_alone(built, browser, tmp_path):
    """Moved elsewhere, the page and its figures still open."""
    folder = Path(shutil.copytree(built / "results/report", tmp_path / "mailed"))
    open_report(browser, folder / "index.html")
    figure = browser.find_element(By.CSS_SELECTOR, "figcaption a").get_attribute("href")
    open_page(browser, Path(figure.removeprefix("file://")))
