"""Kernels of latent attention: which rows of a tile a position takes, and who decodes how many."""

import itertools

import pytest
from nearfree.errors import EvidenceError
from nearfree.sources.mla_paths import PATHS, engine_paths, path_at
from nearfree.sources.mla_tiles import NAIVE_TILE, kernel_tile, measured_tile, sparse_tile
from packaging.version import Version


@pytest.mark.parametrize(
    ("kernel", "heads", "positions"),
    [("flashmla", 16, 4.0), ("flashmla", 128, 0.5), ("fa3", 8, 8.0), ("flashinfer", 64, 1.0),
     ("trtllm_gen", 16, 1.0), ("trtllm_gen", 128, 0.5), ("cutlass", 128, 1.0),
     ("triton_decode", 16, 1.0), ("triton_decode", 128, 0.125), ("triton_extend", 128, 32.0)],
)  # fmt: skip
def test_positions_fill_a_tile(kernel: str, heads: int, positions: float) -> None:
    """R / H positions where heads of several share a tile; one or less where they do not."""
    tile = kernel_tile(kernel, heads=heads, sm=90)
    assert tile.positions == positions
    assert tile.place


@pytest.mark.parametrize(("sm", "rows"), [(90, 32), (89, 32), (100, 16), (103, 16), (120, 32)])
def test_sglang_extends_by_fewer_rows_on_blackwell(sm: int, rows: int) -> None:
    """From 10.0 on, but not on compute capability 12, a tile has 16."""
    tile = kernel_tile("triton_extend", heads=16, sm=sm)
    assert (tile.rows, tile.shared, tile.splits) == (rows, False, False)


@pytest.mark.parametrize(("heads", "positions"), [(16, 1.0), (64, 1.0), (65, 0.5), (128, 0.5)])
def test_selected_positions_have_a_tile_each_from_hopper_on(heads: int, positions: float) -> None:
    """Heads of one position are padded to 64; other GPUs have no such kernel that is known."""
    for sm in (90, 100, 103):
        assert sparse_tile(heads=heads, sm=sm).positions == positions
    for sm in (80, 89, 120):
        with pytest.raises(EvidenceError, match=rf"compute capability {sm // 10}\.{sm % 10}"):
            sparse_tile(heads=heads, sm=sm)


def test_an_unknown_kernel_is_refused() -> None:
    """How a kernel tiles that nobody read is not guessed."""
    with pytest.raises(EvidenceError, match="latent attention of xformers tiles is not known"):
        kernel_tile("xformers", heads=16, sm=90)
    with pytest.raises(EvidenceError, match=r"TensorRT-LLM on capability 8\.9"):
        measured_tile("trtllm", "default", heads=16, sm=89, cached=True, absorbed=True)


@pytest.mark.parametrize(
    ("backend", "kernel", "sm", "cached", "path"),
    [
        ("sglang", "flash_attention", 90, False, "fa3"),
        ("sglang", "trtllm_mla", 100, True, "trtllm_gen"),
        ("sglang", "triton", 89, False, "triton_extend"),
        ("sglang", "triton", 89, True, "triton_decode"),
        ("trtllm", "default", 90, True, "flashmla"),
        ("trtllm", "default", 103, True, "trtllm_gen"),
        ("flashmla", None, 90, True, "flashmla"),
    ],
)
def test_tables_name_known_kernels(
    backend: str,
    kernel: str | None,
    sm: int,
    cached: int,
    path: str,
) -> None:
    """A table's own name, and a backend's, are one of the kernels that are known."""
    tile = measured_tile(backend, kernel, heads=16, sm=sm, cached=bool(cached), absorbed=True)
    assert tile.path == path


def test_naive_heads_share_nothing() -> None:
    """Keys and values of each head have a row axis each."""
    tile = measured_tile("trtllm", "default", heads=16, sm=89, cached=False, absorbed=False)
    assert tile is NAIVE_TILE
    assert not tile.shared


@pytest.mark.parametrize(
    ("engine", "version", "sm", "positions", "kernel"),
    [
        ("vllm_mla", "0.9.1", 80, 1, "triton_decode"),
        ("vllm_mla", "0.9.1", 90, 1, "flashmla"),
        ("vllm_mla", "0.9.1", 90, 2, None),
        ("vllm_mla", "0.10.2", 90, 1, "flashmla"),
        ("vllm_mla", "0.11.0", 90, 2, None),
        ("vllm_mla", "0.11.1", 90, 2, "fa3"),
        ("vllm_mla", "0.20.2", 90, 512, "fa3"),
        ("vllm_mla", "0.20.2", 90, 513, None),
        ("vllm_mla", "0.14.0", 100, 1, "cutlass"),
        ("vllm_mla", "0.14.0", 100, 2, None),
        ("vllm_mla", "0.15.0", 100, 9, "trtllm_gen"),
        ("vllm_mla", "0.30.0", 80, 2, None),
        ("vllm_mla", "0.31.0", 80, 2, "triton_decode"),
        ("sglang_mla", "0.5.9", 90, 4, "fa3"),
        ("sglang_mla", "0.5.9", 120, 1, "triton_decode"),
        ("sglang_mla", "0.5.9", 120, 2, "triton_extend"),
    ],
)
def test_engines_decode_up_to_some_positions(
    engine: str, version: str, sm: int, positions: int, kernel: str | None
) -> None:
    """Which kernel takes N follows from release and GPU; what none takes is prefill."""
    path = path_at(engine_paths(engine, version, sm), positions)
    assert (path.kernel if path else None) == kernel


@pytest.mark.parametrize(("version", "sm"), [("0.1.0", 90), ("0.14.0", 70), ("0.34.0", 90)])
def test_what_was_not_read_is_refused(version: str, sm: int) -> None:
    """A release or GPU outside what was read has no kernel here, with the remedy named."""
    with pytest.raises(EvidenceError, match="is not known") as caught:
        engine_paths("vllm_mla", version, sm)
    assert "0.33.0" in caught.value.remedy


def test_a_release_is_needed() -> None:
    """Kernels differ between releases, so that none is assumed."""
    with pytest.raises(EvidenceError, match="no release of vllm_mla is given"):
        engine_paths("vllm_mla", None, 90)


def test_one_kernel_takes_each_number_of_positions() -> None:
    """Paths of an engine, release and GPU do not overlap in N, so that the choice is one."""
    releases = {Version(path.first) for path in PATHS} | {Version(path.last) for path in PATHS}
    for engine in ("vllm_mla", "sglang_mla"):
        for release in releases:
            for sm, few in itertools.product((80, 89, 90, 100, 103, 120), (False, True)):
                paths = [
                    path for path in PATHS if path.applies_to(engine, release, sm, few_bits=few)
                ]
                for n in (1, 2, 3, 512, 513):
                    assert sum(path_at([path], n) is not None for path in paths) <= 1
