"""The explorer in a real browser, over a setting that was measured and published."""

import json
from pathlib import Path

import pytest
from browsing import open_report, start
from derive.tables.logs import make_tables, write_study
from nearfree.derive.predict.predictions import PREDICTIONS
from nearfree.derive.tables.boundaries import BOUNDARIES
from nearfree.derive.tables.store import read_table
from nearfree.log.names import Layout
from nearfree.show.figures.stage import draw
from nearfree.show.page import inline
from nearfree.show.text.forecast import amount
from selenium import webdriver
from selenium.webdriver.common.by import By

from show.page.conftest import written

PAPER = {"d_model": 4096, "d_ff": 9216, "dtype": "bfloat16"}
"""The paper's dense FFN, which it prints boundaries of on H20."""


@pytest.mark.browser
@pytest.mark.slow
def test_predictions_stand_beside_the_boundary_that_they_are_of(
    copy: Layout, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Predictions of a measured boundary are not mixed with those of the printed one."""
    write_study(copy, "h20", stream="paper", batches=(1,), **PAPER)
    make_tables(copy, "h20")
    draw(copy, "h20", 0.2)
    written(copy)
    at = {"platform": "h20", "module": "dense_ffn", "batch": 1, "d_model": 4096, "epsilon": 0.2}
    boundaries = {
        scope: read_table(copy, scope, BOUNDARIES).filter("newest", **at).row(0, named=True)
        for scope in ("h20", "public")
    }
    assert len({(row["setting_key"], row["baseline"]) for row in boundaries.values()}) == 1
    browser = start(tmp_path_factory.mktemp("profile"))
    try:
        for scope, row in boundaries.items():
            page = copy.root / "report" / "index.html"
            query = "&".join(f"{name}={row[name]}" for name in (*at, "stream", "setting_key"))
            open_report(browser, page, f"#kind=observed&{query}")
            links = browser.find_elements(By.CSS_SELECTOR, "#answered a[data-row^='predictions:']")
            shown = {link.get_attribute("data-row") for link in links}
            mine = read_table(copy, scope, PREDICTIONS).filter(
                origin=row["origin"], setting_key=row["setting_key"], epsilon=0.2
            )
            assert shown == {*mine["row_id"]}
    finally:
        browser.quit()


@pytest.mark.browser
def test_a_boundary_is_said_as_predict_prints_it(browser: webdriver.Chrome) -> None:
    """N_max from 10 on is rounded down to a whole number; below, it has two decimals."""
    source = (Path(inline.__file__).parent / "assets" / "words.js").read_text(encoding="utf-8")
    facts = "".join(f"const {k} = {json.dumps(v)};" for k, v in inline.facts().items())
    ask = f"{facts} {source}; return arguments[0].map((n_max) => amount({{ n_max, baseline: 0 }}))"
    values = [0.125, 1, 6.2191, 9.994, 9.996, 10 - 1e-9, 10 * (1 - 1e-15), 12.7, 408.6, 511.99]
    browser.get("about:blank")
    shown = browser.execute_script(ask, values)
    assert shown == [amount(value) for value in values]
    assert shown[-2:] == ["408", "511"]
