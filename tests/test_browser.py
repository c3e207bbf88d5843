"""The report and the figures in a real browser, from files, without a network."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

pytestmark = pytest.mark.browser
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
MODELS = "#models"
OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    """Return a headless Chromium that logs requests; CI must have one."""
    if CHROMIUM is None or DRIVER is None:
        if os.environ.get("CI"):
            pytest.fail("CI must install chromium and chromium-driver")
        pytest.skip("no chromium and chromedriver on this machine")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for option in (*OPTIONS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    driver.get("about:blank")
    yield driver
    driver.quit()


def open_page(browser: webdriver.Chrome, path: Path) -> None:
    """Open a file and check that it asked for nothing else and complained of nothing."""
    browser.get_log("performance")
    browser.get_log("browser")
    browser.get(path.as_uri())
    requests = [
        entry["message"]
        for entry in browser.get_log("performance")
        if '"Network.requestWillBeSent"' in entry["message"]
    ]
    assert all('"url":"file://' in r or '"url":"data:' in r for r in requests), requests
    severe = [e for e in browser.get_log("browser") if e["level"] in {"SEVERE", "WARNING"}]
    assert not severe


def test_the_report_opens_from_a_file(built, browser):
    """The page loads without a network, without an error, and shows its answer and figures."""
    open_page(browser, built / "results/report/index.html")
    assert browser.find_element(By.TAG_NAME, "h1").text == "How many positions are near-free here?"
    figures = browser.find_elements(By.CSS_SELECTOR, "figure svg")
    predicted = browser.find_elements(By.CSS_SELECTOR, f"{MODELS} figure svg")
    assert len(predicted) == 3
    assert len(figures) == 11 + len(predicted)
    assert all(2000 > figure.size["height"] > 200 for figure in figures)


def test_figures_of_models_say_that_they_are_predicted(built, browser):
    """Nothing that was only predicted can be taken for measured."""
    open_page(browser, built / "results/report/index.html")
    for figure in browser.find_elements(By.CSS_SELECTOR, f"{MODELS} figure svg"):
        text = figure.get_attribute("textContent")
        assert "Predicted, not measured" in text or "M_attn as printed" in text
        assert "measured here" not in text


def test_every_figure_shows_measured_data(built, browser):
    """Each drawing but those of models holds marks for this machine's measured rows."""
    open_page(browser, built / "results/report/index.html")
    for figure in browser.find_elements(By.CSS_SELECTOR, f"section:not({MODELS}) figure svg"):
        marks = figure.find_elements(
            By.CSS_SELECTOR, "[aria-roledescription$='mark container'] path"
        )
        assert len(marks) > 3
        text = figure.get_attribute("textContent")
        assert "measured" in text or "counted" in text


def test_a_click_on_a_number_leads_to_its_events(built, browser):
    """From N_max two clicks lead to the measured row, whose events are in the named lines."""
    open_page(browser, built / "results/report/index.html")
    cell = browser.find_element(
        By.CSS_SELECTOR, "section[id='platform-cpu'] tbody tr td:nth-child(3) a"
    )
    shown = cell.text
    cell.click()
    line = browser.find_element(By.CSS_SELECTOR, "li:target")
    assert f"n_max = {shown}," in line.text
    line.find_element(By.CSS_SELECTOR, "a").click()
    line = browser.find_element(By.CSS_SELECTOR, "li:target")
    link = line.find_element(By.CSS_SELECTOR, "a[href$='.jsonl']")
    numbers = line.text.partition(" line ")[2].partition(" (")[0].split(", ")
    segment = Path(link.get_property("href").removeprefix("file://"))
    events = segment.read_text().splitlines()
    assert all('"nearfree.latency.measured.v1"' in events[int(n) - 1] for n in numbers)


@pytest.mark.parametrize("width", [360, 1200])
def test_the_page_does_not_scroll_sideways(built, browser, width):
    """Wide tables scroll inside themselves, also on a phone."""
    browser.set_window_size(max(width, 500), 900)
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500},
    )
    open_page(browser, built / "results/report/index.html")
    wide = browser.execute_script("return document.documentElement.scrollWidth")
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert wide <= width


@pytest.mark.parametrize(
    "name", ["dense_ffn_latency_against_n", "dense_ffn_nmax_against_batch", "dense_ffn_sensitivity"]
)
def test_interactive_figures_work_offline(built, browser, name):
    """Each interactive figure carries its own library and draws itself."""
    open_page(browser, built / "results/figures/cpu" / f"{name}.html")
    browser.implicitly_wait(5)
    drawn = browser.find_element(By.CSS_SELECTOR, "#vis canvas, #vis svg")
    browser.implicitly_wait(0)
    assert drawn.size["height"] > 200
