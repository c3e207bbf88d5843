"""vLLM's dense products of quantised weights: rows of a tile, by the recorded releases."""

from functools import cache

import pytest
from derive.questions import LOG
from nearfree.sources.language.rule import Rule
from nearfree.sources.record import recorded_extraction

NEWEST = "0.33.0"
BEFORE = ("0.9.1", "0.14.0", "0.19.0", "0.20.2", "0.22.0")
SINCE = ("0.24.0", NEWEST)


@cache
def rules(version: str) -> dict[str, Rule]:
    """Return a release's recorded rules."""
    extraction = recorded_extraction(LOG, "vllm-linear", version)
    assert extraction is not None
    return extraction.by_name()


def tiles(
    version: str, rule: str, *rows: int, n: int = 14336, k: int = 4096, sms: int = 132
) -> list[object]:
    """Return the rows of a tile for some numbers of rows."""
    facts = {"columns": n, "depth": k, "sms": sms, "activation_bits": 16}
    return [rules(version)[rule].value({**facts, "rows": m}).value for m in rows]


@pytest.mark.parametrize("version", [*BEFORE[1:], *SINCE])
def test_cutlass_on_hopper_takes_few_rows_in_small_tiles(version: str) -> None:
    """16 rows, then 64 up to 128, then 128; narrow weights keep 16 up to 64; the widest takes 256.

    Before 0.10.1 no tile was smaller than 64.
    """
    steps = (1, 16, 17, 64, 65, 128, 129)
    assert tiles(version, "float8_sm90", *steps) == [16, 16, 64, 64, 64, 64, 128]
    assert tiles(version, "float8_sm90", *steps, n=1280) == [16, 16, 16, 16, 64, 64, 128]
    assert tiles(version, "float8_sm90", 8191, 8192, k=6144) == [128, 256]
    assert tiles("0.9.1", "float8_sm90", *steps) == [64, 64, 64, 64, 64, 64, 128]


def test_other_capabilities_have_dispatches_of_their_own() -> None:
    """Ada goes by powers of two, Blackwell from 32 rows on, 12.0 from 16 since 0.17."""
    ada = tiles(NEWEST, "float8_sm89", 16, 17, 33, 65, 129, 257)
    assert ada == [16, 32, 64, 128, 128, 128]
    assert tiles(NEWEST, "float8_sm100", 1, 16, 17, 64, 65, 257) == [32, 32, 64, 64, 128, 256]
    assert tiles("0.14.0", "float8_sm120", 1, 512) == [128, 128]
    assert tiles(NEWEST, "float8_sm120", 1, 17, 33, 256, 257) == [16, 32, 64, 64, 128]
    assert tiles(NEWEST, "int8_sm90", 1, 64, 128, 129) == [64, 64, 64, 128]
    assert tiles(NEWEST, "int8_sm80", 16, 17, 33, 65, 129) == [16, 32, 64, 128, 128]


@pytest.mark.parametrize("version", BEFORE)
def test_scaled_blocks_on_hopper_took_128_rows(version: str) -> None:
    """Up to 0.22 the tile has 128 rows for any number of rows."""
    assert tiles(version, "float8_block_sm90", 1, 3, 4, 64, 129) == [128] * 5


@pytest.mark.parametrize("version", SINCE)
def test_scaled_blocks_on_hopper_take_16_rows_where_four_do_not_divide_them(version: str) -> None:
    """Since 0.24 rows that four does not divide take 16, so that T(N) may decrease."""
    assert tiles(version, "float8_block_sm90", *range(1, 9)) == [16, 16, 16, 128] * 2


def test_scaled_blocks_on_blackwell_go_by_waves() -> None:
    """The first of 64, 128 and 256 rows whose tiles fit the SMs; few rows take 16."""
    assert tiles(NEWEST, "float8_block_sm100", 64, 65, n=4096, sms=148) == [16, 64]
    assert tiles(NEWEST, "float8_block_sm100", 257, 513, 1024, n=4096, sms=148) == [128, 256, 256]
    assert tiles("0.24.0", "float8_block_sm100", 15, 16, 17, n=4096, sms=148) == [16, 64, 16]


@pytest.mark.parametrize("version", [*BEFORE, *SINCE])
def test_machete_is_the_same_in_all_releases(version: str) -> None:
    """By rows, and by how wide and deep the weights are; a limit of 4069 leaves out 4096."""
    steps = (16, 17, 33, 65, 129, 257)
    assert tiles(version, "machete", *steps, n=14336, k=4096) == [16, 32, 64, 128, 256, 256]
    assert tiles(version, "machete", *steps, n=4096, k=4096) == [16, 32, 16, 128, 64, 128]
    assert tiles(version, "machete", 65, n=4069, k=4069) == [32]


@pytest.mark.parametrize("version", [*BEFORE, *SINCE])
def test_marlin_takes_whole_tiles_first(version: str) -> None:
    """A pass takes whole tiles of 64 rows up to a maximum, then the rest."""
    assert tiles(version, "marlin", 8, 9, 64, 65, 191) == [
        (8, 8), (16, 9), (64, 64), (64, 64), (64, 128),
    ]  # fmt: skip
    assert tiles(version, "marlin", 5000) == [(64, 1024)]
    assert tiles(version, "marlin", 9000, n=4096) == [(64, 8192)]


@pytest.mark.parametrize("version", [*BEFORE, *SINCE])
def test_rows_from_which_weights_are_unpacked_first(version: str) -> None:
    """AWQ's kernel up to 255 rows, Exllama's up to 50, or 24 of 8 bits."""
    by_name = rules(version)
    awq = [by_name["awq_dequantises"].value({"rows": m}).value for m in (255, 256)]
    assert awq == [False, True]
    for bits, last in ((4, 50), (8, 24)):
        ends = [by_name["exllama_dequantises"].value({"rows": m, "bits": bits}).value
                for m in (last, last + 1)]  # fmt: skip
        assert ends == [False, True]


def test_evidence_stands_in_the_sdist() -> None:
    """The files are from vLLM's sdist with the index's hash."""
    extraction = recorded_extraction(LOG, "vllm-linear", NEWEST)
    assert extraction is not None
    (source,) = extraction.fetched
    assert (source.artefact, source.verified) == ("vllm-0.33.0.tar.gz", "artefact")
    paths = {member.path for member in source.members}
    quoted = {q.file for rule in extraction.rules for b in rule.branches for q in b.quotes}
    assert quoted <= paths
    assert any(path.endswith("scaled_mm_sm90_fp8_dispatch.cuh") for path in quoted)
