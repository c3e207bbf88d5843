"""What the tests of writing a crate compare: its bytes, its faults, and why it is refused."""

from pathlib import Path

import pytest
from derive.tables.logs import CONFIG
from msgspec import json
from nearfree.errors import NearfreeError
from nearfree.log.names import Layout
from nearfree.prove.crate.check import check_crate
from nearfree.prove.crate.graph import METADATA
from nearfree.prove.crate.write import write_crate
from prove.crate.conftest import PROJECT
from prove.crate.faults import read_graph


def faults(crate: Path) -> list[object]:
    """Return a crate's faults: the findings of `--verify`, and ids without an entity."""
    listed = json.decode((crate / METADATA).read_bytes())["@graph"]
    known = read_graph(crate).keys()
    assert len(listed) == len(known), "an id is described twice"
    values = [value for entity in listed for value in entity.values()]
    every = [item for value in values for item in (value if isinstance(value, list) else [value])]
    assert not any(isinstance(item, list) for item in every)
    named = [item.pop("@id") for item in every if isinstance(item, dict)]
    assert not any(item for item in every if isinstance(item, dict)), "an entity is not flat"
    loose = [name for name in named if name not in known and not name.startswith("https://")]
    return [*check_crate(crate), *loose]


def refused(
    layout: Layout,
    out: Path,
    *,
    name: str | None = None,
    project: Path = PROJECT,
    config: Path = CONFIG,
) -> str:
    """Return why no crate is written; nothing of it may be left."""
    beside = sorted(out.parent.iterdir())
    with pytest.raises(NearfreeError) as refusal:
        write_crate(layout, project, config, out, name)
    assert sorted(out.parent.iterdir()) == beside
    return str(refusal.value)
