"""Data sets by name: what is not there is refused with a remedy, and small weights left out."""

from pathlib import Path

import pytest
from conftest import write_payloads
from hypothesis import given
from hypothesis import strategies as st
from nearfree.config.files import Config
from nearfree.core.plan import ImportPlan
from nearfree.core.scopes import IMPORTED
from nearfree.core.setting import Setting
from nearfree.derive.truth.datasets import (
    heavy_enough,
    load_aiconfigurator,
    load_file,
    load_measured,
    load_published,
)
from nearfree.errors import EvidenceError
from nearfree.log.events import LatencyImported
from nearfree.log.names import Layout
from nearfree.log.take import take_name

from derive.curves import make_curves
from derive.tables.logs import CONFIG, make_results

HEADER = (
    "platform,module,backend,backend_version,dtype,batch,context,d_model,d_ff,gated,experts,top_k,"
    "routing,heads,kv_heads,head_dim,kernel,n,latency_us\n"
)


def test_what_is_not_there_is_refused(layout: Layout) -> None:
    """An empty results folder holds no data set; each says how to get it."""
    with pytest.raises(EvidenceError, match="nearfree import published"):
        load_published(layout, [0.2])
    with pytest.raises(EvidenceError, match="nearfree import aiconfigurator"):
        load_aiconfigurator(layout, [0.2], 64.0)
    with pytest.raises(EvidenceError, match="Run the workflow"):
        load_measured(layout, Config(CONFIG), [0.2])


def import_gemm(layout: Layout, release: str, times: dict[int, float], width: int) -> None:
    """Put a curve of a product into the log, the way an imported release has it."""
    event = LatencyImported(
        source="a release of our own making",
        member="gemm.parquet",
        member_sha256="0" * 64,
        platform="h100",
        setting=Setting(module="gemm", backend="vllm", dtype="bfloat16", d_model=8192, d_ff=width),
        backend_version="0.9.0",
        n=tuple(times),
        latency_us=tuple(times.values()),
    )
    plan = ImportPlan(files={f"{release}.whl": "0" * 64})
    write_payloads(layout, take_name(IMPORTED, release, 1, plan), plan, event)


def test_the_newest_imported_release(layout: Layout) -> None:
    """Releases are ordered by number, other imports left out, and the one that counts is named."""
    flat, steep = {1: 10.0, 2: 10.0, 4: 40.0}, {1: 10.0, 2: 20.0, 4: 40.0}
    import_gemm(layout, "aiconfigurator_core_0_12_0", flat, 8192)
    import_gemm(layout, "aiconfigurator_core_0_9_0", steep, 8192)
    import_gemm(layout, "curves_mine", steep, 8192)
    name, found = load_aiconfigurator(layout, [0.2], 64.0)
    assert name == (
        "aiconfigurator (aiconfigurator_core_0_12_0),"
        " gemm weights of 64 MB or more: 0 curves left out"
    )
    assert found.boundaries["n_max"].to_list() == [2]


def test_the_tables_of_every_platform(layout: Layout, published: Layout) -> None:
    """Measured boundaries are those of each platform that has tables, named in the title."""
    make_results(layout, published, takes=1)
    name, found = load_measured(layout, Config(CONFIG), [0.2])
    assert name == "measured modules (cpu)"
    assert found.settings["platform"].to_list() == ["cpu", "cpu"]


def test_a_file_of_curves(tmp_path: Path) -> None:
    """A file's curves are scored without a log."""
    path = tmp_path / "mine.csv"
    rows = [f"h100,gemm,vllm,0.9.0,bfloat16,1,,8192,8192,,,,,,,,,{n},{us}" for n, us in
            ((1, 50.0), (64, 51.0), (256, 70.0), (1024, 200.0))]  # fmt: skip
    path.write_text(HEADER + "\n".join(rows) + "\n")
    name, found = load_file(path, Config(CONFIG), [0.2], 0.0)
    assert name == "mine.csv"
    assert found.boundaries.select("baseline", "n_max", "next_n").rows() == [(1, 64, 256)]
    name, found = load_file(path, Config(CONFIG), [0.2], 135.0)
    assert "135 MB or more: 1 curves left out" in name
    assert found.settings.is_empty()


@given(st.integers(1, 20000), st.integers(1, 20000), st.sampled_from(["bfloat16", "float8"]))
def test_small_products_are_left_out(d_model: int, d_ff: int, element_type: str) -> None:
    """The weights of a product decide; other modules are kept whatever their size."""
    shape = {"d_model": d_model, "d_ff": d_ff, "dtype": element_type}
    settings, _ = make_curves(
        ({"module": "gemm", **shape}, {1: 1.0}), ({"module": "dense_ffn", **shape}, {1: 1.0})
    )
    weights = d_model * d_ff * (2 if element_type == "bfloat16" else 1)
    kept = heavy_enough(settings, 64.0)["module"].to_list()
    assert kept == (["gemm", "dense_ffn"] if weights >= 64e6 else ["dense_ffn"])
