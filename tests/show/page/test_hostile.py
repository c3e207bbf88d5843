"""Hostile text in evidence is shown as text; hostile or damaged files are refused."""

from pathlib import Path

import pytest
from nearfree.errors import NearfreeError, TableError
from nearfree.log.names import Layout
from nearfree.show.page.pictures import safe_svg

from show.page.conftest import written
from show.page.hostile import HOSTILE, hostile_report
from show.page.page import Page

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Page:
    """Return a report whose published rules, host and config hold hostile texts."""
    root = tmp_path_factory.mktemp("hostile")
    return Page(hostile_report(root).read_text(encoding="utf-8"))


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_text_is_shown_as_text(hostile: Page, text: str) -> None:
    """The page shows hostile texts of rules, hosts and gallery entries letter by letter."""
    assert hostile.text.count(text) >= 5


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_text_is_data_inside_blocks(hostile: Page, text: str) -> None:
    """The page's data hold the text unchanged, which the script inserts as text."""
    for column in ("package", "path", "condition"):
        held = hostile.block("table:granularity")["columns"][column]
        assert text in held.get("values", held.get("plain"))
    assert any(text in run["host_label"] for run in hostile.block("runs").values())
    assert any(text in entry.values() for entry in hostile.block("config").values())


def test_hostile_text_makes_no_elements(hostile: Page) -> None:
    """No text becomes an element, an attribute or a script."""
    assert not hostile.tags & {"img", "iframe"}
    assert not any(name.startswith("on") for _, name, _ in hostile.attributes)
    assert len(hostile.scripts) == len(hostile.styles) == 1
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
    '<svg><path fill="url(https://example.org/x)"/></svg>',
    '<svg><path fill="URL( &quot;https://example.org/x&quot;)"/></svg>',
    '<svg><path style="fill: url(#a); mask: url(https://example.org/x)"/></svg>',
    "<svg><foreignObject><iframe></iframe></foreignObject></svg>",
]


@pytest.mark.parametrize("text", SCRIPTS)
def test_a_script_in_a_picture_is_refused(tmp_path: Path, text: str) -> None:
    """A picture that could run or load something is refused by name."""
    with pytest.raises(TableError, match=r"a\.svg"):
        safe_svg(tmp_path / "a.svg", text.encode())


@pytest.mark.parametrize("value", ["url(#a)", "URL( '#a')", "url(#a) url(#b)", "none"])
def test_what_stands_in_the_picture_may_be_named(tmp_path: Path, value: str) -> None:
    """A reference inside a picture, in any spelling, loads nothing."""
    text = f'<svg><path fill="{value}"/></svg>'
    assert safe_svg(tmp_path / "a.svg", text.encode()) == text


def test_a_drawing_is_kept_as_it_is(made: Layout) -> None:
    """Drawings of this project pass unchanged."""
    for path in (made.root / "figures").rglob("*.svg"):
        assert safe_svg(path, path.read_bytes()) == path.read_text(encoding="utf-8")


DAMAGED = {
    "dense_ffn_sensitivity.svg": (None, b"\xff\xfe<svg/>", b"<svg/>"),
    "dense_ffn_sensitivity.html": (None, b"<script>alert(1)</script>"),
    "../vega.js": (None, b"alert(1)"),
    "figures.json": (None, b"", b"{}", b'[{"name":"x"}]', b"\xff"),
}


@pytest.mark.parametrize(
    ("name", "raw"), [(name, raw) for name, many in DAMAGED.items() for raw in many]
)
def test_a_damaged_figure_is_refused(copy: Layout, name: str, raw: bytes | None) -> None:
    """A missing or changed file of a figure is refused by name."""
    path = copy.root / "figures" / "cpu" / name
    path.unlink()
    if raw is not None:
        path.write_bytes(raw)
    with pytest.raises(NearfreeError, match=path.name):
        written(copy)


@pytest.mark.parametrize("table", ["platforms", "latency", "validation"])
def test_a_damaged_table_is_refused(copy: Layout, table: str) -> None:
    """A damaged table is refused by name, and the earlier page stays."""
    path = copy.table("cpu", table)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(NearfreeError, match=table):
        written(copy)


def test_a_damaged_segment_is_refused(copy: Layout) -> None:
    """A report over a damaged log is refused."""
    take = copy.takes("cpu")[0]
    path = copy.segment(take, 1)
    path.write_bytes(path.read_bytes().replace(b"abc", b"abd", 1))
    with pytest.raises(NearfreeError, match=str(take)):
        written(copy)
