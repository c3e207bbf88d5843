"""Rules in the log: written once, read back without the network."""

from pathlib import Path

import pytest
import yaml
from nearfree.backends.records import ruled_packages
from nearfree.core.scopes import SOURCES
from nearfree.errors import SourceError
from nearfree.log.events import TunedIndexed
from nearfree.log.evidence import read_scope
from nearfree.log.names import Layout
from nearfree.log.retract import retract
from nearfree.log.verify import verify
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

ROOT = Path(__file__).parents[2]
ASKED, LOG = ROOT / "config" / "sources.yaml", Layout(ROOT / "results")


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


def recorded() -> list[tuple[str, str]]:
    """Return the releases that the shipped config asks for."""
    return [parse_release(entry) for entry in yaml.safe_load(ASKED.read_text())["releases"]]


@pytest.mark.parametrize("release", recorded(), ids="==".join)
def test_every_release_that_is_asked_for_is_on_record(release: tuple[str, str]) -> None:
    """A clone answers without the network: the take of today's plan is sealed."""
    assert LOG.seal(extract_take(*release)).is_file()


def test_releases_have_the_sizes_of_a_whole_block_on_record() -> None:
    """What today's readers read is what the newest take holds, in every MoE release."""
    for package, version in recorded():
        if package in ruled_packages("moe_ffn"):
            extraction = recorded_extraction(LOG, package, version)
            assert extraction is not None
            sizes = {"block_size_m", "block_size_n", "block_size_k", "group_size_m"}
            sizes |= {"num_warps", "num_stages"}
            assert sizes <= extraction.by_name().keys()
            assert all(bool(file.block_size_k) == (file.odd is None) for file in extraction.tuned)


def test_takes_of_the_first_form_are_still_read() -> None:
    """An old take has no other sizes, and its rows are those of the newest take."""
    takes = sorted(read_scope(LOG, SOURCES, stream="vllm_0_9_1"), key=lambda release: release.order)
    assert len(takes) >= 2
    old, new = (
        [event.data for event in take.events_of(TunedIndexed)] for take in (takes[0], takes[-1])
    )
    assert [(e.file, e.tokens, e.block_size_m) for e in old] == [
        (e.file, e.tokens, e.block_size_m) for e in new
    ]
    assert {file.block_size_k for file in old} == {()}
    extraction = recorded_extraction(LOG, "vllm", "0.9.1")
    assert extraction is not None
    assert extraction.tuned == tuple(new)


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


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("flash-atn==2.8.3", "Nearest are flash-attn"),
        ("vlm==0.33.0", "Nearest are vllm"),
        ("torch==2.0", "Known are vllm, "),
    ],
)
def test_a_package_that_is_not_read_is_answered_with_the_nearest(text: str, remedy: str) -> None:
    """A misspelt package names those that are spelt alike, any other one all that are read."""
    with pytest.raises(SourceError, match="are not read") as caught:
        parse_release(text)
    assert caught.value.remedy.startswith(remedy)
