"""A report over evidence and config with hostile texts."""

import csv
import shutil
from pathlib import Path

import pytest
from derive.tables.logs import CONFIG, SHEETS, make_tables
from msgspec import structs
from nearfree.log.names import Layout
from nearfree.public.published import import_published
from nearfree.show.figures.gallery import STATUSES, Entry
from nearfree.show.figures.stage import draw
from nearfree.show.page.stage import write_report

HOSTILE = {
    "a script": "<script>alert(1)</script>",
    "the end of a script": "</script><script>alert(1)</script>",
    "a picture": "<img src=x onerror=alert(1)>",
    "quotes": '"\'><b onmouseover="x()">&amp;',
    "a template": "{{ 7 * 7 }}{% raw %}",
    "right to left": "\u202eabc\u202c\u200f",
    "an open override": "\u202eabc",
    "a long word": "x" * 10_000,
    "another alphabet": "μέτρηση 測定 🙂",
}


def hostile_report(root: Path) -> Path:
    """Write a report whose rules, host, datasheets and gallery hold hostile texts."""
    folder = Path(shutil.copytree(CONFIG / "published", root / "published"))
    with (folder / "rules.csv").open("a", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(["tab:x", t, "1.0", t, t, 16] for t in HOSTILE.values())
    layout = Layout(root / "results")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEARFREE_HOST_LABEL", " ".join(HOSTILE.values()))
        import_published(layout, folder)
    make_tables(layout, "public")
    draw(layout, "public", 0.2)
    named = dict(enumerate(HOSTILE.values()))
    sheet = structs.replace(SHEETS["h20"], sources={f"fact {n}": t for n, t in named.items()})
    paper = [_entry(text) for text in HOSTILE.values()]
    return write_report(layout, ["public"], SHEETS | {"h20": sheet}, 0.2, paper)


def _entry(text: str) -> Entry:
    return Entry(
        label=text, section="sec. 1", title=text, status=STATUSES[-1],
        figures=(), alike=(), data=(), fills=(), document="",
    )  # fmt: skip
