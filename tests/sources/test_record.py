"""Rules in the log: written once, read back without the network."""

from pathlib import Path

import pytest
from nearfree.errors import SourceError
from nearfree.events.names import Layout
from nearfree.events.retract import retract
from nearfree.events.verify import verify
from nearfree.sources import record
from nearfree.sources.extraction import Extraction
from nearfree.sources.fetching.cache import Cache
from nearfree.sources.packages import package_name, parse_release
from nearfree.sources.record import (
    extract_take,
    find_extraction,
    record_extraction,
    recorded_extraction,
    stream_name,
)

from sources.moe_release import made_release


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    """Return a log with the made-up release in it, where nothing else can be read."""

    def only(package: str, version: str, **_: object) -> Extraction:
        if version != "1.0":
            raise SourceError(f"{package} {version} is not in the cache", remedy="Fetch it")
        return made_release()

    monkeypatch.setattr(record, "extract", only)
    layout = Layout(tmp_path / "results")
    record_extraction(layout, "vllm", "1.0", cache=Cache(tmp_path / "cache"), offline=True)
    return layout


def test_what_is_recorded_is_what_was_read(layout: Layout) -> None:
    """Sources, rules and tuned files come back from the log as they were."""
    assert recorded_extraction(layout, "vllm", "1.0") == made_release()
    assert not verify(layout.root).findings


def test_recording_again_changes_nothing(layout: Layout, tmp_path: Path) -> None:
    """A sealed release is not read again, and its bytes stay."""
    before = {path: path.read_bytes() for path in (layout.root / "events").rglob("*.*")}
    record_extraction(layout, "vllm", "1.0", cache=Cache(tmp_path / "none"), offline=True)
    assert {path: path.read_bytes() for path in (layout.root / "events").rglob("*.*")} == before


def test_a_release_that_cannot_be_read_leaves_no_seal(layout: Layout, tmp_path: Path) -> None:
    """The failure is on record, and nothing speaks for the release."""
    with pytest.raises(SourceError):
        record_extraction(layout, "vllm", "2.0", cache=Cache(tmp_path / "none"), offline=True)
    assert recorded_extraction(layout, "vllm", "2.0") is None
    assert not layout.seal(extract_take("vllm", "2.0")).exists()


def test_the_log_comes_before_the_cache(layout: Layout, tmp_path: Path) -> None:
    """A query takes what is on record and asks for the rest."""
    cache = Cache(tmp_path / "none")
    assert find_extraction(layout, "vllm", "1.0", cache=cache, offline=True) == made_release()
    with pytest.raises(SourceError, match="not in the cache"):
        find_extraction(layout, "vllm", "3.0", cache=cache, offline=True)


def test_a_retracted_take_says_nothing_any_more(layout: Layout) -> None:
    """After a retraction the release is as good as not recorded."""
    retract(layout, str(extract_take("vllm", "1.0")), "read by a faulty reader")
    assert recorded_extraction(layout, "vllm", "1.0") is None


def test_streams_are_names_of_the_log() -> None:
    """A release's stream is its package and version in the log's letters."""
    assert stream_name("flash-attn-4", "4.0.0b36") == "flash_attn_4_4_0_0b36"


def test_releases_are_written_as_the_index_does() -> None:
    """Other spellings of a package are understood, other packages and forms refused."""
    assert parse_release("flashinfer==0.6.13") == ("flashinfer-python", "0.6.13")
    assert package_name("Flash_Attn") == "flash-attn"
    for text in ("vllm", "vllm==", "torch==2.0", "vllm==../../etc", "vllm>=1"):
        with pytest.raises(SourceError):
            parse_release(text)
