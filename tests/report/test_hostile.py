"""Hostile text in evidence is shown as text; hostile or damaged files are refused."""

import csv
import shutil
from pathlib import Path

import pytest
from nearfree.errors import NearfreeError, TableError
from nearfree.events.names import Layout
from nearfree.figures.stage import draw
from nearfree.public.published import import_published
from nearfree.report.stage import write_report
from tables.logs import CONFIG, SHEETS, make_tables

from report.conftest import SCOPES
from report.page import Page

RTL = "\u202eabc\u202c\u200f"
HOSTILE = {
    "a script": "<script>alert(1)</script>",
    "a picture": "<img src=x onerror=alert(1)>",
    "quotes": '"\'><b onmouseover="x()">&amp;',
    "a template": "{{ 7 * 7 }}{% raw %}",
    "right to left": RTL,
    "a long word": "x" * 10_000,
    "another alphabet": "μέτρηση 測定 🙂",
}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Page:
    """Return a report over published rules, and by a host, that hold such text."""
    root = tmp_path_factory.mktemp("hostile")
    folder = Path(shutil.copytree(CONFIG / "published", root / "published"))
    with (folder / "rules.csv").open("a", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(["tab:x", t, "1.0", t, t, 16] for t in HOSTILE.values())
    layout = Layout(root / "results")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEARFREE_HOST_LABEL", " ".join(HOSTILE.values()))
        import_published(layout, folder)
    make_tables(layout, "public")
    draw(layout, "public", 0.2)
    return Page(write_report(layout, ["public"], SHEETS, 0.2).read_text(encoding="utf-8"))


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_text_is_shown_as_text(hostile: Page, text: str) -> None:
    """Whatever a published rule or a host's label holds, the page shows it, letter by letter."""
    assert hostile.text.count(text) >= 4


def test_hostile_text_makes_no_elements(hostile: Page) -> None:
    """No text of the evidence becomes an element or an attribute of the page."""
    assert not hostile.tags & {"script", "img", "iframe"}
    assert not any(name.startswith("on") for _, name, _ in hostile.attributes)
    assert f"on {' '.join(HOSTILE.values())}" in hostile.text


SCRIPTS = [
    "<svg><script>alert(1)</script></svg>",
    "<svg><SCRIPT >alert(1)</SCRIPT></svg>",
    '<svg onload="alert(1)"/>',
    '<svg onload = "alert(1)"/>',
    '<svg\nonclick="alert(1)"/>',
    '<svg/onload="alert(1)"/>',
    '<svg><a href="javascript:alert(1)">x</a></svg>',
    '<svg><a href="java&#115;cript:alert(1)">x</a></svg>',
    '<svg><image href="https://example.org/x.png"/></svg>',
    "<svg><foreignObject><iframe></iframe></foreignObject></svg>",
]


@pytest.mark.parametrize("text", SCRIPTS)
def test_a_script_in_a_picture_is_refused(copy: Layout, text: str) -> None:
    """A picture that could run or load something is refused by name."""
    (copy.root / "figures" / "cpu" / "dense_ffn_sensitivity.svg").write_text(text)
    with pytest.raises(TableError, match=r"cpu/dense_ffn_sensitivity\.svg"):
        write_report(copy, SCOPES, SHEETS, 0.2)
    assert not (copy.root / "report" / "index.html").exists() or "alert" not in (
        copy.root / "report" / "index.html"
    ).read_text(encoding="utf-8")


DAMAGED = {
    "dense_ffn_sensitivity.svg": (None, b"\xff\xfe<svg/>"),
    "figures.json": (None, b"", b"{}", b'[{"name":"x"}]', b"\xff"),
}


@pytest.mark.parametrize(
    ("name", "raw"), [(name, raw) for name, many in DAMAGED.items() for raw in many]
)
def test_a_damaged_figure_is_refused(copy: Layout, name: str, raw: bytes | None) -> None:
    """A picture or list that is missing or no text is refused by name."""
    path = copy.root / "figures" / "cpu" / name
    path.unlink()
    if raw is not None:
        path.write_bytes(raw)
    with pytest.raises(NearfreeError, match=name):
        write_report(copy, SCOPES, SHEETS, 0.2)


@pytest.mark.parametrize("table", ["platforms", "latency", "validation"])
def test_a_damaged_table_is_refused(copy: Layout, table: str) -> None:
    """A damaged table is refused by name, and the page that there was stays."""
    path = copy.table("cpu", table)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(NearfreeError, match=table):
        write_report(copy, SCOPES, SHEETS, 0.2)


def test_a_damaged_segment_is_refused(copy: Layout) -> None:
    """A report over a damaged log is refused: its links would lead to other bytes."""
    take = copy.takes("cpu")[0]
    path = copy.segment(take, 1)
    path.write_bytes(path.read_bytes().replace(b"abc", b"abd", 1))
    with pytest.raises(NearfreeError, match=str(take)):
        write_report(copy, SCOPES, SHEETS, 0.2)
