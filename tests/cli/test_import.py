"""`nearfree import`: its output, and mistakes in one message."""

from pathlib import Path

import pytest
from nearfree.public.aiconfigurator import VERSION
from public.tables import GEMM, WHOLE, member, parquet, put_release, rows
from public.test_curve_file import GOOD, write
from sources.fetching.indexserver import Server, server

from cli.conftest import Call

__all__ = ["server"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Store fetched files in the test's own folder."""
    monkeypatch.setenv("NEARFREE_CACHE", str(tmp_path / "cache"))


def test_the_tables_of_a_release(project: Path, call: Call, server: Server) -> None:
    """The output lists what was imported, and what was left out and why; then, that it exists."""
    extra_members = {
        member("gemm_perf", "gb999"): parquet(rows("gemm_perf", (1, 1.0), gemm_dtype="fp6"))
    }
    put_release(server, {**WHOLE, **extra_members}, systems=("h100_sxm", "gb999", "a30"))
    code, out, err = call("import", "aiconfigurator")
    assert (code, err) == (0, "")
    assert "imported/aiconfigurator_core_0_12_0/1-" in out
    assert "Apache-2.0, Copyright (c) 2030 Somebody" in out
    assert "under their own names: gb999" in out
    assert "1  gemm: dtype fp6 has no place in a setting" in out
    assert "left out: a30, the release has no table of it" in out
    assert "it was already sealed" in call("import", "aiconfigurator", "--offline")[1]
    assert call("verify")[0] == 0


def test_an_implausible_curve_is_named(project: Path, call: Call, server: Server) -> None:
    """A curve that is left out is counted, and one of each kind is named."""
    bad = [{**row, "latency": 0.0, "k": 512} for row in GEMM]
    put_release(server, {**WHOLE, member("gemm_perf"): parquet([*GEMM, *bad])})
    out = call("import", "aiconfigurator")[1]
    assert "1  h100: a latency that is no positive number" in out
    assert "d_model 512" in out


def test_a_release_that_cannot_be_fetched_is_refused(
    project: Path, call: Call, server: Server
) -> None:
    """Without the release, or without the network, the message says so and nothing is written."""
    before = sorted(project.glob("results/events/*"))
    put_release(server, WHOLE)
    code, out, err = call("import", "aiconfigurator", "--version", "0.1.0")
    assert (code, out) == (2, "")
    assert "aiconfigurator-core has no version 0.1.0" in err
    assert "not in the cache" in call("import", "aiconfigurator", "--offline")[2]
    assert sorted(project.glob("results/events/*")) == before


def test_a_curve_file(project: Path, call: Call) -> None:
    """A file's curves are sealed, and the output lists what could not be checked."""
    write(project, *GOOD)
    code, out, err = call("import", "curves", "mine.csv", "--name", "lab")
    assert (code, err) == (0, "")
    assert "imported/curves_lab/1-" in out
    assert "4 curves of mine.csv" in out
    assert "h20: some of its latencies" in out
    assert call("verify")[0] == 0


def test_a_retracted_take_is_imported_again(project: Path, call: Call, server: Server) -> None:
    """The retracted take stays retracted, and another one of the same bytes holds its curves."""
    write(project, *GOOD)
    put_release(server, WHOLE)
    for source in (("aiconfigurator",), ("curves", "mine.csv")):
        name = call("import", *source)[1].partition(":")[0]
        assert call("log", "retract", name, "--reason", "a table was wrong")[0] == 0
        code, out, _ = call("import", *source, "--take", "2")
        assert (code, out.partition(":")[0]) == (0, name.replace("/1-", "/2-"))
    assert call("verify")[0] == 0


def test_a_mistake_in_a_curve_file(project: Path, call: Call) -> None:
    """A mistake is one message with line and column, and no scope appears in the log."""
    write(project, *GOOD, GOOD[0])
    code, out, err = call("import", "curves", "mine.csv")
    assert (code, out) == (2, "")
    assert err.startswith("nearfree: error: mine.csv line 10, column n: N=1 is in line 2")
    assert not (project / "results" / "events" / "imported").exists()


def test_the_help_names_the_default_version(call: Call) -> None:
    """The version that is imported by default is the one that the help names."""
    assert f"(default: {VERSION})" in call("import", "aiconfigurator", "--help")[1]
