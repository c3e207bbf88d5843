"""In a real browser: the explorer says what the commands say, and numbers open what they rest on.

Rows and events are read here from Parquet and JSON lines themselves, without the page's code.
"""

import json
import math
import re
import shlex
from typing import Any
from urllib.parse import urlencode

import polars as pl
import pytest
from browsing import dice, open_report, quiet, until
from nearfree.config.files import Config
from nearfree.core.parallel import DEGREES
from nearfree.derive.predict.answers import Answerer
from nearfree.derive.predict.forecast.expand_deployments import deployments
from nearfree.derive.predict.forecast.forecast import forecast
from nearfree.derive.tables.columns import SETTING_COLUMNS
from nearfree.log.names import Layout
from nearfree.show.page.sections import n_max
from nearfree.show.text.answer_json import answer
from selenium import webdriver
from selenium.webdriver.common.by import By

pytestmark = pytest.mark.browser
REPORT = "results/report/index.html"
CHOICES = (
    "model",
    "platform",
    "attention",
    "moe",
    "routing",
    "dtype",
    *DEGREES,
    "context",
    "batch",
)
CONDITION = (*CHOICES, "deployment")
UNFIT = "does not fit"
Row = dict[str, Any]


@pytest.fixture(scope="module")
def rows(built) -> dict[str, Row]:
    """Return every row of every table by its id."""
    files = sorted((built / "results/tables").rglob("*.parquet"))
    return {row["row_id"]: row for file in files for row in pl.read_parquet(file).to_dicts()}


@pytest.fixture(scope="module")
def answers(answering) -> dict[str, Row]:
    """Return every row of every table of that project by its id."""
    files = sorted((answering / "results/tables").rglob("*.parquet"))
    return {row["row_id"]: row for file in files for row in pl.read_parquet(file).to_dicts()}


def of_table(rows: dict[str, Row], table: str) -> list[Row]:
    """Return a table's rows."""
    return [row for row_id, row in rows.items() if row_id.startswith(f"{table}:")]


def choose(browser: webdriver.Chrome, built, **choice: object) -> None:
    """Open the report with a choice in its address."""
    options = {name: value for name, value in choice.items() if value is not None}
    open_report(browser, built / REPORT, f"#{urlencode(options)}")


def numbers(browser: webdriver.Chrome) -> dict[str, str]:
    """Return the explorer's numbers by row, the first one that each row has."""
    links = browser.find_elements(By.CSS_SELECTOR, "#answered a[data-row]")
    return {
        link.get_attribute("data-row"): link.get_attribute("textContent")
        for link in reversed(links)
    }


def printed(row: Row) -> str:
    """Return a boundary as commands print it, made from its row."""
    if row["unbounded"]:
        return "unbounded"
    if row["n_max"] is None:
        return "refused"
    if row["censored"]:
        text = f"≥ {row['n_max']:g}"
    else:
        floor = math.floor(row["n_max"] * (1 + 1e-12))
        text = f"{floor}" if floor >= 10 else f"{min(row['n_max'], 9.99):.3g}"
    return f"{text} < {row['baseline']}" if row["n_max"] < row["baseline"] else text


def latency_text(us: float) -> str:
    """Return a latency as the explorer prints it: four digits, or whole microseconds."""
    return f"{us:#.4g}".removesuffix(".") if us < 1000 else f"{us:.0f}"


@pytest.mark.slow
def test_the_explorer_says_what_predict_says(answering, browser, answers):
    """For chosen deployments every predictor's boundary and T(N) are those of the command."""
    config = Config(answering / "config")
    answerer = Answerer(Layout(answering / "results"), config, offline=True, log_alone=True)
    lookup = of_table(answers, "lookup")
    low = next(r for r in lookup if r["n_max"] is not None and r["n_max"] < r["baseline"])
    padded = next(r for r in lookup if r["graphs"] and r["composition"] == "sum" and r["n_max"])
    for row in (low, padded, *dice(7).sample(lookup, 6)):
        entry = deployments(config, config.deployments[row["deployment"]])
        query = next(
            candidate for candidate in entry if all(candidate.about[k] == row[k] for k in CHOICES)
        )
        predicted = forecast([query], answerer, [row["epsilon"]])
        document = answer(predicted, 0, row["epsilon"], None)
        choice = {name: row[name] for name in (*CONDITION, "baseline", "epsilon")}
        choose(browser, answering, kind="predicted", **choice)
        shown = numbers(browser)
        for entry_row in document["predictors"]:
            if entry_row["baseline"] != row["baseline"]:
                continue
            way = (entry_row["predictor"], entry_row["composition"])
            (mine,) = [
                other["row_id"]
                for other in lookup
                if (other["predictor"], other["composition"]) == way
                and all(other[name] == value for name, value in choice.items())
            ]
            unfit = row["fits"] is False and entry_row["composition"] == "sum"
            assert shown[mine] == (UNFIT if unfit else printed(entry_row))
        ratios = {point["n"]: point["ratio"] for point in document["curve"]}
        times = {point["n"]: point["latency_us"] for point in document["curve"]}
        lines = browser.find_elements(By.CSS_SELECTOR, "#answered details tbody tr")
        assert bool(lines) == bool(ratios)
        for line in lines:
            n, us, ratio = (
                cell.get_attribute("textContent")
                for cell in line.find_elements(By.TAG_NAME, "td")[:3]
            )
            assert ratio == f"{ratios[int(n)]:.3f}"
            assert us == latency_text(times[int(n)])
        text = browser.find_element(By.ID, "answered").text
        assert (f"padded to the CUDA graphs of {row['graphs']}" in text) == bool(row["graphs"])
        late = row["baseline"] > 1 and row["fits"]
        assert (f"from N = {row['baseline']}," in text) == late
        best = [
            prediction
            for prediction in document["predictors"]
            if prediction["composition"] == "sum"
        ]
        seen = "in sample" if best[0]["in_sample"] else "out of sample"
        assert (f"Constants of the work model, {seen}" in text) == bool(best[0]["constants"])
    quiet(browser)


@pytest.mark.slow
@pytest.mark.parametrize("fits", [True, False])
def test_the_explorer_says_what_fits(answering, browser, answers, fits):
    """It names formats and parts of memory; what does not fit has that where N_max is, in words."""
    row = next(r for r in of_table(answers, "lookup") if r["fits"] is fits)
    choice = {name: row[name] for name in (*CONDITION, "baseline", "epsilon")}
    choose(browser, answering, kind="predicted", **choice)
    text = browser.find_element(By.ID, "answered").text
    assert "weights bfloat16, products with bfloat16, cache bfloat16" in text
    gb = {name: f"{row[f'{name}_bytes'] / 1e9:.1f} GB" for name in ("peak", "capacity", "weights")}
    assert f"memory: {gb['peak']} of {gb['capacity']} (weights {gb['weights']}, " in text
    assert f"largest batch at this context: {row['largest_batch']:,}" in text
    big = browser.find_element(By.CSS_SELECTOR, ".headline .big").text
    assert (big == UNFIT) == (not fits)
    assert (f"{row['gpus_needed']} h100 hold it" in text) == (not fits)
    assert ("by each predictor, if memory is ignored" in text) == (not fits)
    opened(browser, browser.find_element(By.CSS_SELECTOR, ".headline a[data-row]"))
    panel = browser.find_element(By.ID, "panel-body").text
    assert f"{row['peak_bytes']} bytes" in panel
    assert "GB for collectives, at most its memory" in panel
    quiet(browser)


@pytest.mark.slow
def test_the_command_beside_a_schedule_prints_it(answering, browser, answers):
    """Each engine's option is what the command that stands beside it says, with graphs or none."""
    asked_about = [row for row in of_table(answers, "schedules") if row["option"]]
    assert {row["graphs"] for row in asked_about} == {None, "vllm 0.33.0"}
    for graphs in (None, "vllm 0.33.0"):
        row = dice(5).choice([row for row in asked_about if row["graphs"] == graphs])
        choice = {name: row[name] for name in (*CONDITION, "epsilon") if name != "batch"}
        choose(browser, answering, kind="predicted", **choice)
        options = [
            element.get_attribute("textContent")
            for element in browser.find_elements(By.CSS_SELECTOR, "#answered pre")
        ]
        commands = [
            shlex.split(element.get_attribute("textContent"))
            for element in browser.find_elements(By.CSS_SELECTOR, "#answered .command")
        ]
        assert row["option"] in options
        for option, (name, *words) in zip(options, commands, strict=True):
            assert name == "nearfree"
            assert answering.nearfree(*words).strip() == option


def test_what_a_link_asks_for_in_vain_is_told(built, browser):
    """Each word that is not here is named with what is shown, and those of the page never are."""
    choose(browser, built, kind="observed", backend="nowhere", moe="<b>", modle="qwen3")
    banner = browser.find_element(By.CSS_SELECTOR, "#answered .banner").text
    assert banner.startswith("The address of this page asks for what is not here: ")
    assert "no rows of backend = nowhere: backend = torch is shown instead; " in banner
    assert "no rows of moe = <b>: moe = none is shown instead; " in banner
    assert "no choice is called modle: those here are kind, platform, " in banner
    box = browser.find_element(By.CSS_SELECTOR, "input[value='predicted']")
    browser.execute_script("arguments[0].click()", box)
    until(browser, "document.getElementById('answered').dataset.shown === 'predicted'")
    link = browser.current_url
    open_report(browser, built / REPORT, f"#{link.partition('#')[2]}")
    assert not browser.find_elements(By.CSS_SELECTOR, "#answered .banner")


def test_the_explorer_tells_measured_boundaries(built, browser, rows):
    """What was measured is told with its boundary, interval and points, as the tables have them."""
    newest = [row for row in of_table(rows, "boundaries") if row["newest"]]
    ends = next(row for row in newest if row["next_n"] is None)
    for row in (ends, *dice(7).sample(newest, 6)):
        keys = ("platform", "stream", "setting_key", "epsilon", *SETTING_COLUMNS)
        choose(browser, built, kind="observed", **{k: row[k] for k in keys if k != "model_digest"})
        assert numbers(browser)[row["row_id"]] == n_max(row)
        curve = [
            point
            for point in of_table(rows, "latency")
            if all(point[k] == row[k] for k in ("platform", "stream", "take", "plan8"))
            and point["setting_key"] == row["setting_key"]
        ]
        assert {point["row_id"] for point in curve} <= numbers(browser).keys()
        tag = browser.find_element(By.CSS_SELECTOR, ".headline .tag").text
        assert tag.startswith(row["origin"])
    quiet(browser)


def test_only_what_exists_is_offered(built, browser, rows):
    """After any choice each offered value belongs to a row, and a change keeps the rest valid."""
    lookup = of_table(rows, "lookup")
    choose(browser, built, kind="predicted")
    chance = dice(3)
    for _ in range(12):
        boxes = browser.find_elements(By.CSS_SELECTOR, "#choices select")
        box = chance.choice(boxes)
        name = box.get_attribute("name")
        values = [o.get_attribute("value") for o in box.find_elements(By.TAG_NAME, "option")]
        assert set(values) <= {"" if r[name] is None else f"{r[name]:g}" if isinstance(
            r[name], float) else str(r[name]) for r in lookup}  # fmt: skip
        before = browser.execute_script("return document.documentElement.dataset.explored")
        set_to = (
            "arguments[0].value = arguments[1];"
            "arguments[0].dispatchEvent(new Event('change', {bubbles: true}))"
        )
        browser.execute_script(set_to, box, chance.choice(values))
        until(browser, f"document.documentElement.dataset.explored !== '{before}'")
        big = browser.find_element(By.CSS_SELECTOR, ".headline .big")
        assert big.get_attribute("data-row") in {row["row_id"] for row in lookup}
    link = browser.current_url
    shown = numbers(browser)
    open_report(browser, built / REPORT, f"#{link.partition('#')[2]}")
    assert numbers(browser) == shown


def opened(browser: webdriver.Chrome, link: Any) -> str:
    """Click a number, wait for its panel, and return the id that it shows."""
    row = link.get_attribute("data-row")
    browser.execute_script("arguments[0].click()", link)
    until(browser, f"document.getElementById('panel').dataset.row === {json.dumps(row)}")
    return row


def commands(browser: webdriver.Chrome) -> list[list[str]]:
    """Return the panel's commands, as a shell would read them."""
    shown = browser.find_elements(By.CSS_SELECTOR, "#panel .command")
    return [shlex.split(element.get_attribute("textContent")) for element in shown]


def inside_meanings(browser: webdriver.Chrome) -> list[str]:
    """Return the panel's explanations of its columns."""
    small = browser.find_elements(By.CSS_SELECTOR, "#panel-body .fields dd small")
    return [element.text for element in small if element.is_displayed()]


def inside(browser: webdriver.Chrome) -> list[Any]:
    """Return the links of the panel that lead on."""
    return browser.find_elements(By.CSS_SELECTOR, "#panel-body a[data-row]")


def test_twenty_numbers_lead_to_their_rows_and_events(built, browser, rows):
    """A click opens the number's row with all that it was made from; a way on ends at an event."""
    open_report(browser, built / REPORT)
    links = browser.find_elements(By.CSS_SELECTOR, "main a[data-row]")
    own = browser.find_elements(By.CSS_SELECTOR, "#platform-cpu a[data-row^='boundaries:']")
    samples = 0
    for link in [*dice(11).sample(links, 12), *dice(11).sample(own, 8)]:
        here = opened(browser, link)
        while "#" not in here and not here.startswith("config/"):
            row = rows[here]
            text = browser.find_element(By.ID, "panel-body").get_attribute("textContent")
            assert here in text
            assert commands(browser) == [["nearfree", "audit", here]]
            assert inside_meanings(browser)
            on = {element.get_attribute("data-row"): element for element in inside(browser)}
            assert set(row["from_ids"]) <= on.keys()
            if not row["from_ids"]:
                break
            here = opened(browser, on[row["from_ids"][0]])
        if "#" in here:
            samples += check_event(browser, built, here)
        browser.execute_script("document.getElementById('panel-close').click()")
        until(browser, "document.getElementById('panel').hidden")
    assert samples >= 8
    quiet(browser)


def check_event(browser: webdriver.Chrome, built, event_id: str) -> bool:
    """Check an event's panel against the log's line; return whether it shows raw samples."""
    segment, _, line = event_id.partition("#")
    raw = (built / f"results/events/{segment}.jsonl").read_text().splitlines()[int(line) - 1]
    event = json.loads(raw)
    panel = browser.find_element(By.ID, "panel-body")
    text = panel.get_attribute("textContent")
    assert commands(browser) == [["nearfree", "log", "show", event_id]]
    assert "(in the results folder)" in text
    link = panel.find_element(By.CSS_SELECTOR, "a[href$='.jsonl']").get_attribute("href")
    assert link == (built / f"results/events/{segment}.jsonl").resolve().as_uri()
    first = json.loads((built / f"results/events/{segment}.jsonl").read_text().splitlines()[0])
    assert first["data"]["command"] in text
    assert first["data"]["commit"] is None or first["data"]["commit"] in text
    if not event["type"].startswith("nearfree.latency.measured"):
        return False
    named = dict(zip(
        (e.get_attribute("textContent") for e in panel.find_elements(By.CSS_SELECTOR, "dt")),
        (e.get_attribute("textContent") for e in panel.find_elements(By.CSS_SELECTOR, "dd")),
        strict=True,
    ))  # fmt: skip
    assert (named["N"], named["round"]) == (str(event["data"]["n"]), str(event["data"]["round"]))
    shown = [float(sample) for sample in re.findall(r"[\d.]+", named["wall"])]
    assert shown == pytest.approx(event["data"]["wall_us"], rel=1e-5)
    return True


def test_from_n_max_two_clicks_lead_to_raw_samples(built, browser, rows):
    """The second click shows the samples of every round, as the log has them."""
    open_report(browser, built / REPORT)
    number = browser.find_element(By.CSS_SELECTOR, "#answer .chips a[data-row]")
    boundary = opened(browser, number)
    on = {element.get_attribute("data-row"): element for element in inside(browser)}
    point = opened(browser, on[rows[boundary]["from_ids"][-1]])
    lines = browser.find_elements(By.CSS_SELECTOR, "#panel .samples tbody tr")
    ids = [line.find_element(By.TAG_NAME, "a").get_attribute("data-row") for line in lines]
    assert ids == rows[point]["from_ids"]
    for event_id, line in zip(ids, lines, strict=True):
        segment, _, number = event_id.partition("#")
        log = (built / f"results/events/{segment}.jsonl").read_text().splitlines()
        event = json.loads(log[int(number) - 1])
        cell_text = line.find_elements(By.TAG_NAME, "td")[3].get_attribute("textContent")
        shown = [float(sample) for sample in re.findall(r"[\d.]+", cell_text)]
        assert shown == pytest.approx(event["data"]["wall_us"], rel=1e-5)
        assert event["data"]["n"] == rows[point]["n"]
