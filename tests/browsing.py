"""A headless Chromium for tests: it opens pages from files and collects messages and requests."""

import json
import os
import random
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
PATIENCE_S = 20
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


def start(profile: Path) -> webdriver.Chrome:
    """Return a headless Chromium that logs requests; CI must have one."""
    if CHROMIUM is None or DRIVER is None:
        if os.environ.get("CI"):
            pytest.fail("CI must install chromium and chromium-driver")
        pytest.skip("no chromium and chromedriver on this machine")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for option in (*OPTIONS, f"--user-data-dir={profile}"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    driver.get("about:blank")
    return driver


def open_page(browser: webdriver.Chrome, path: Path, fragment: str = "") -> None:
    """Open a file; check that it requested nothing else and logged no error."""
    browser.get("about:blank")
    browser.get_log("performance")
    browser.get_log("browser")
    browser.get(path.as_uri() + fragment)
    quiet(browser)


def open_report(browser: webdriver.Chrome, path: Path, fragment: str = "") -> None:
    """Open a report, and wait until its explorer has shown something."""
    open_page(browser, path, fragment)
    until(browser, "document.documentElement.dataset.readyMs")
    quiet(browser)


def quiet(browser: webdriver.Chrome) -> None:
    """Check that no network request was made and no error was logged so far."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = [
        message["params"]["request"]["url"]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
    ]
    assert all(url.startswith(("file://", "data:", "blob:")) for url in urls), urls
    severe = [e for e in browser.get_log("browser") if e["level"] in {"SEVERE", "WARNING"}]
    assert not severe


def until(browser: webdriver.Chrome, expression: str) -> Any:
    """Wait until an expression of the page's script is true, and return it."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        value = browser.execute_script(f"return {expression}")
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"never true: {expression}")


def dice(seed: int) -> random.Random:
    """Return a source of chance that is the same each time."""
    return random.Random(seed)  # noqa: S311 (nothing is kept secret)


@contextmanager
def screen(browser: webdriver.Chrome, width: int, scheme: str = "light") -> Iterator[None]:
    """Make the screen as wide as a device's, in a colour scheme."""
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500},
    )
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    try:
        yield
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
