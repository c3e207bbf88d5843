"""Small attention settings, and what our resolver answers for them from recorded rules."""

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
    """Return the question for our resolver: `capacity` is what a request has room for."""
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
    """Return what the repository's log says of a release."""
    found = recorded_extraction(LOG, package, version)
    assert found is not None
    return found


def resolved(package: str, version: str, asked: AttentionQuery, n: int) -> Tile:
    """Return the tile of a call over N positions, as the recorded rules say."""
    return reader(package).tile(recorded(package, version).by_name(), asked, n)
