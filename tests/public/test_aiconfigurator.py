"""The import of AIConfigurator's tables: each curve with its source, and all or nothing."""

from pathlib import Path

import pytest
from conftest import read_sealed
from nearfree.config.files import Config
from nearfree.errors import SourceError
from nearfree.log.events import LatencyImported, SourceFetched
from nearfree.log.names import Layout
from nearfree.public import aiconfigurator, perf_tables
from nearfree.public.aiconfigurator import Imported, import_aiconfigurator
from nearfree.public.curves import read_curves
from nearfree.public.guarded_reader import GuardedReader
from nearfree.public.perf_tables import read_rows
from nearfree.sources.fetching.cache import Cache
from sources.fetching.indexserver import Server, server

from public.tables import GEMM, METADATA, ROOT, WHOLE, member, parquet, put_release, rows

__all__ = ["server"]

PLATFORMS = Config(Path(__file__).parents[2] / "config").platforms
GEMM_PATH = member("gemm_perf")


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    """Return an empty cache."""
    return Cache(tmp_path / "cache")


def imported(layout: Layout, cache: Cache, *, offline: bool = False) -> Imported:
    """Import the release on the index."""
    return import_aiconfigurator(layout, PLATFORMS, cache=cache, offline=offline)


def curves(layout: Layout, done: Imported) -> list[LatencyImported]:
    """Return the curves of a sealed import."""
    events = read_sealed(layout, done.seal)
    return [event.data for event in events if isinstance(event.data, LatencyImported)]


def test_each_table_becomes_curves(server: Server, layout: Layout, cache: Cache) -> None:
    """Each table's rows become curves with the module's fields, in microseconds."""
    put_release(server, WHOLE)
    curves_by_member = {curve.member: curve for curve in curves(layout, imported(layout, cache))}
    assert len(curves_by_member) == 4
    gemm = curves_by_member[member("gemm_perf")]
    assert (gemm.n, gemm.latency_us) == ((1, 2, 64), (30.0, 31.0, 50.0))
    assert (gemm.setting.d_model, gemm.setting.d_ff, gemm.setting.batch) == (4096, 8192, 1)
    moe = curves_by_member[member("moe_perf")].setting
    assert (moe.d_model, moe.d_ff, moe.experts, moe.top_k) == (4096, 1024, 64, 8)
    assert (moe.routing, moe.gated) == ("balanced", None)
    context = curves_by_member[member("context_attention_perf")]
    assert (context.setting.context, context.n, context.contexts) == (0, (64, 4096), None)
    generation = curves_by_member[member("generation_attention_perf")]
    assert (generation.n, generation.contexts) == ((1, 1), (127, 8191))
    assert generation.setting.context == 127
    for curve in curves_by_member.values():
        assert (curve.platform, curve.setting.backend, curve.backend_version) == (
            "h100",
            "vllm",
            "0.24.0",
        )


def test_licence_and_hashes_are_on_record(server: Server, layout: Layout, cache: Cache) -> None:
    """Each curve names licence, copyright and its member's hash."""
    put_release(server, WHOLE)
    done = imported(layout, cache)
    (fetched,) = [
        e.data for e in read_sealed(layout, done.seal) if isinstance(e.data, SourceFetched)
    ]
    hashes = {file.path: file.sha256 for file in fetched.members}
    assert "aiconfigurator_core-0.12.0.dist-info/METADATA" in hashes
    for curve in curves(layout, done):
        assert curve.member_sha256 == hashes[curve.member]
        assert "Apache-2.0, Copyright (c) 2030 Somebody" in curve.source


def test_importing_twice_is_one_take(server: Server, layout: Layout, cache: Cache) -> None:
    """The same wheel is imported once, the second time from the cache without the network."""
    put_release(server, WHOLE)
    first = imported(layout, cache)
    requests = len(server.seen)
    again = imported(layout, cache, offline=True)
    assert (again.fresh, again.seal.segments) == (None, first.seal.segments)
    assert len(server.seen) == requests
    assert [take.stream for take in layout.takes()] == ["aiconfigurator_core_0_12_0"]


def test_an_older_import_is_widened_by_a_new_take(
    server: Server, layout: Layout, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an earlier form left out is in a new take, which alone counts."""
    eight = rows("gemm_perf", (1, 0.02), (2, 0.02), gemm_dtype="fp8_block")
    put_release(server, {**WHOLE, GEMM_PATH: parquet([*GEMM, *eight])})
    with monkeypatch.context() as older:
        older.setattr(perf_tables, "_FORMATS", {"bfloat16": ("bfloat16", None)})
        older.setattr(aiconfigurator, "FORM", 1)
        older.setattr(GuardedReader, "read", lambda _, member, raw: read_rows(member, raw))
        imported(layout, cache)
    assert set(read_curves(layout).settings["dtype"]) == {"bfloat16"}
    assert imported(layout, cache).fresh is not None
    assert len(list(layout.takes())) == 2
    assert read_curves(layout).settings.height == 5
    assert set(read_curves(layout).settings["dtype"]) == {"bfloat16", "float8_block"}
    assert imported(layout, cache).fresh is None


def test_systems_by_their_names(server: Server, layout: Layout, cache: Cache) -> None:
    """An unknown system keeps its name; a GPU of another maker is left out."""
    tables = {member("gemm_perf", system): parquet(GEMM) for system in ("h100_sxm", "gb999", "b60")}
    put_release(server, tables, systems=("h100_sxm", "gb999", "b60", "a30"))
    done = imported(layout, cache)
    assert {curve.platform for curve in curves(layout, done)} == {"h100", "gb999"}
    assert done.fresh is not None
    assert {system.name: system.known for system in done.fresh.systems} == {
        "gb999": False,
        "h100_sxm": True,
    }
    assert set(done.fresh.left_out) == {"a30", "b60"}
    assert "Intel" in done.fresh.left_out["b60"]


def test_other_facts_are_told(server: Server, layout: Layout, cache: Cache) -> None:
    """A fact that differs between source and config is reported, an equal one is not."""
    put_release(server, WHOLE, bandwidth=3_000_000_000_000)
    done = imported(layout, cache)
    assert done.fresh is not None
    assert done.fresh.differences == ["h100: bandwidth, GB/s: 3350 here, 3000 in h100_sxm.yaml"]


BAD_TABLES = {
    "no Parquet": b"PAR1 this is none PAR1",
    "empty": b"",
    "cut": WHOLE[GEMM_PATH][:-20],
    "flipped": WHOLE[GEMM_PATH][:200] + bytes(100) + WHOLE[GEMM_PATH][300:],
    "a missing column": parquet([{k: v for k, v in row.items() if k != "k"} for row in GEMM]),
    "text for a number": parquet([{**row, "m": "one"} for row in GEMM]),
    "no value": parquet([*GEMM, {**GEMM[0], "k": None}]),
    "a URL": parquet([{**row, "kernel_source": "https://x"} for row in GEMM]),
    "a long text": parquet([{**row, "version": "1" * 201} for row in GEMM]),
}


@pytest.mark.parametrize("raw", BAD_TABLES.values(), ids=BAD_TABLES.keys())
def test_a_bad_table_is_named(server: Server, layout: Layout, cache: Cache, raw: bytes) -> None:
    """An invalid table refuses the whole import by the member's name, and leaves no file."""
    put_release(server, {**WHOLE, GEMM_PATH: raw})
    with pytest.raises(SourceError) as caught:
        imported(layout, cache)
    assert GEMM_PATH in caught.value.what
    assert "\n" not in str(caught.value)
    assert "take another version" in caught.value.remedy
    assert not layout.root.exists()


def test_a_release_without_its_licence(server: Server, layout: Layout, cache: Cache) -> None:
    """A wheel whose metadata names no licence is refused."""
    put_release(server, WHOLE, metadata=METADATA.replace("License-Expression", "Other"))
    with pytest.raises(SourceError, match="states no licence"):
        imported(layout, cache)
    assert not layout.root.exists()


def test_tables_of_a_system_without_facts(server: Server, layout: Layout, cache: Cache) -> None:
    """A table whose system has no file is refused by name."""
    put_release(server, WHOLE, systems=("a30",))
    with pytest.raises(SourceError, match=r"without a file h100_sxm\.yaml"):
        imported(layout, cache)


def test_a_release_of_another_form(server: Server, layout: Layout, cache: Cache) -> None:
    """A wheel without a plausible curve is refused, not imported as empty."""
    put_release(server, {GEMM_PATH: parquet(GEMM[:1])})
    with pytest.raises(SourceError, match="no curve of the known form"):
        imported(layout, cache)
    assert not layout.root.exists()


def test_only_what_is_needed_is_fetched(server: Server, layout: Layout, cache: Cache) -> None:
    """Tables of other operations, and those of other vendors, are never fetched."""
    other = {
        f"{ROOT}data/h100_sxm/mla/vllm/0.24.0/mla_perf.parquet": b"x",
        member("gemm_perf", "b60"): b"x",
        f"{ROOT}data/h100_sxm/moe/vllm/0.24.0/wideep_moe_perf.parquet": b"x",
    }
    put_release(server, {**WHOLE, **other})
    done = imported(layout, cache)
    (fetched,) = [
        e.data for e in read_sealed(layout, done.seal) if isinstance(e.data, SourceFetched)
    ]
    assert not {file.path for file in fetched.members} & set(other)
