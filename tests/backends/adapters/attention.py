"""Small attention settings, and the tiles of recorded rules for them."""

from functools import cache
from pathlib import Path
from typing import Any

from nearfree.core.setting import Setting
from nearfree.log.names import Layout
from nearfree.sources.attention import AttentionQuery, Tile
from nearfree.sources.extraction import Extraction
from nearfree.sources.packages import reader
from nearfree.sources.record import recorded_extraction

LOG = Layout(Path(__file__).parents[3] / "results")


def make_attention(**changes: Any) -> Setting:
    """Return a tiny attention setting with some of its fields changed."""
    fields: dict[str, Any] = {
        "module": "attention",
        "backend": "flash_attn",
        "dtype": "bfloat16",
        "batch": 2,
        "context": 40,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 16,
    }
    return Setting(**(fields | changes))


def make_query(setting: Setting, capacity: int, **device: Any) -> AttentionQuery:
    """Return the query for recorded rules: a request has room for `capacity` positions."""
    fields: dict[str, Any] = {
        "heads": setting.heads,
        "kv_heads": setting.kv_heads,
        "head_dim": setting.head_dim,
        "context": capacity,
        "batch": setting.batch,
        "paged": setting.page_size is not None,
        "page_size": setting.page_size,
        "api": setting.api or "kvcache",
    }
    return AttentionQuery(**(fields | device))


@cache
def recorded(package: str, version: str) -> Extraction:
    """Return the repository's recorded rules of a release."""
    extraction = recorded_extraction(LOG, package, version)
    assert extraction is not None
    return extraction


def resolved(package: str, version: str, query: AttentionQuery, n: int) -> Tile:
    """Return the tile of a call over N positions by the recorded rules."""
    return reader(package).tile(recorded(package, version).by_name(), query, n)
