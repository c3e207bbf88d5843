"""Packages hidden from imports in a block, and pandera without them."""

import json
import subprocess
import sys
import threading
from importlib import import_module

import pytest
from nearfree.derive.tables.schema import without

CHECKED = """
import json, sys
import polars as pl
from nearfree.derive.tables.columns import count
from nearfree.derive.tables.schema import Table
from nearfree.errors import TableError
table = Table(name="t", row="r", key=("n",), formula="f", code="c", body={"n": count("how many")})
rows = pl.DataFrame({"row_id": ["a", "b"], "n": [1, 2], "from_ids": [["e#1"], ["e#1"]]})
table.check(rows)
try:
    table.check(rows.with_columns(pl.lit("a").alias("row_id")))
except TableError as error:
    print(json.dumps([str(error), sorted({name.partition(".")[0] for name in sys.modules})]))
"""


def test_a_table_is_checked_without_what_pandera_could_use() -> None:
    """Pandera accepts and refuses frames, and neither pandas nor hypothesis was loaded for it."""
    program = [sys.executable, "-c", CHECKED]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    message, loaded = json.loads(done.stdout)
    assert "row_id" in message
    assert "pandera" in loaded
    assert not {"pandas", "hypothesis"} & set(loaded)


def test_only_within_and_only_this_thread_finds_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hidden package is absent in the block and thread only."""
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    with without("colorsys"):
        with pytest.raises(ModuleNotFoundError, match="No module named 'colorsys'"):
            import_module("colorsys")
        other = threading.Thread(target=import_module, args=("colorsys",))
        other.start()
        other.join()
        assert "colorsys" in sys.modules
        assert import_module("colorsys")
    monkeypatch.delitem(sys.modules, "colorsys")
    assert import_module("colorsys")


def test_what_is_loaded_stays_whole() -> None:
    """Parts of a loaded package are still found."""
    import email

    assert email
    with without("email"):
        assert import_module("email.mime.audio")
