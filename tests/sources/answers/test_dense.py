"""The rows that a dense product's kernel takes, by a release's rules."""

from functools import cache

import pytest
from derive.questions import LOG
from nearfree.errors import EvidenceError
from nearfree.sources.answers.dense import DenseQuery, DenseRules
from nearfree.sources.answers.granularity import dense_granularity
from nearfree.sources.extraction import Extraction
from nearfree.sources.language.rule import Answer
from nearfree.sources.record import recorded_extraction

QUERY = DenseQuery(columns=14336, depth=4096, format="int4", sm=80, sms=108)


@cache
def recorded(version: str) -> Extraction:
    """Return a release's recorded rules."""
    extraction = recorded_extraction(LOG, "vllm-linear", version)
    assert extraction is not None
    return extraction


def asked(version: str = "0.33.0", **changes: object) -> DenseRules:
    """Return the rules of a product."""
    query = DenseQuery(**{name: getattr(QUERY, name) for name in QUERY.__struct_fields__} | changes)
    return DenseRules(recorded(version).by_name(), version, query)


def passes(rows: int, most: int) -> tuple[int, int]:
    """Return padded rows and passes of Marlin's loop, computed independently."""
    padded = count = 0
    while rows:
        taken = min(rows // 64, most) * 64 or rows
        tile = 8 if taken <= 8 else 16 * min(-(-taken // 16), 4)
        padded, count, rows = padded + -(-taken // tile) * tile, count + 1, rows - taken
    return padded, count


@pytest.mark.parametrize(("columns", "most"), [(14336, 16), (4096, 128)])
def test_marlin_reads_the_weights_once_a_pass(columns: int, most: int) -> None:
    """Marlin takes whole tiles of 64 rows first, and the rest in one more pass."""
    marlin = asked(columns=columns)
    for rows in (1, 8, 9, 16, 17, 63, 64, 65, 127, 128, 129, 1000, 1024, 1025, 3000, 9000):
        answer = marlin.at(rows)
        assert (answer.padded, answer.passes) == passes(rows, most)
        assert marlin.step(rows) == (answer.value, answer.padded, answer.passes)
    assert (marlin.at(64).passes, marlin.at(65).passes, marlin.at(128).passes) == (1, 2, 1)


@pytest.mark.parametrize("rows", [999_999, 65_536 * 64, 999_999 * 40])
def test_many_passes_that_are_alike_are_asked_once(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Millions of rows need no rule call per pass."""
    marlin, times = asked(), 0
    answer = marlin._answer

    def counted(left: int) -> Answer:
        nonlocal times
        times += 1
        return answer(left)

    monkeypatch.setattr(marlin, "_answer", counted)
    row_passes = marlin.at(rows)
    assert (row_passes.padded, row_passes.passes) == passes(rows, 16)
    assert times < 10


def test_cutlass_pads_to_its_tile_in_one_pass() -> None:
    """Rows are padded to a multiple of the tile for that number of rows."""
    hopper = asked(format="float8", sm=90)
    assert [(hopper.at(m).value, hopper.at(m).padded) for m in (1, 16, 17, 65, 129)] == [
        (16, 16), (16, 16), (64, 64), (64, 128), (128, 256),
    ]  # fmt: skip
    assert hopper.at(129).passes == 1
    assert hopper.kernel == "CUTLASS"


def test_a_kernel_that_the_user_sets_is_asked_instead() -> None:
    """VLLM without DeepGEMM runs CUTLASS, whose rows may decrease with M."""
    forced = asked(format="float8_block", sm=90, kernel="CUTLASS")
    assert [forced.at(m).value for m in (3, 4, 5)] == [16, 128, 16]


@pytest.mark.parametrize(
    "changes",
    [
        {"kernel": "Machete"},
        {"kernel": "Machete", "sm": 90, "columns": 14400},
        {"kernel": "Machete", "sm": 90, "depth": 4128},
        {"kernel": "Machete", "sm": 90, "format": "float8"},
        {"kernel": "Marlin", "format": "int8"},
    ],
)
def test_a_named_kernel_that_takes_no_such_product_is_refused(changes: dict[str, object]) -> None:
    """Machete is refused off Hopper and for other formats or blocks; Marlin for w8a8."""
    with pytest.raises(EvidenceError, match=f"{changes['kernel']} takes no"):
        asked(**changes)  # type: ignore[arg-type]


def test_machete_is_answered_where_it_runs() -> None:
    """Machete's rows, named or chosen, are those of the release's table."""
    named, own = asked(kernel="Machete", sm=90), asked(sm=90)
    assert named.kernel == own.kernel == "Machete"
    assert [named.at(m) for m in (1, 16, 17, 200)] == [own.at(m) for m in (1, 16, 17, 200)]


def test_a_kernel_without_rows_is_named() -> None:
    """A kernel without a rule of rows is refused with the file and lines that choose it."""
    with pytest.raises(EvidenceError, match=r"DeepGEMM .*__init__\.py:494-506"):
        asked(format="float8_block", sm=90)
    with pytest.raises(EvidenceError, match="CUTLASS for int8 on compute capability 86"):
        asked(format="int8", sm=86)


def test_intervals_name_file_lines_and_passes() -> None:
    """Each change of rows or passes names the branch that says it."""
    granularity = dense_granularity(recorded("0.33.0"), QUERY, 60, 130)
    intervals = [
        (interval.first, interval.last, interval.value, interval.passes)
        for interval in granularity.intervals
    ]
    assert intervals == [(60, 64, 64, 1), (65, 127, 64, 2), (128, 128, 64, 1), (129, 130, 64, 2)]
    assert [path.path for path in granularity.kernel_path] == ["Marlin"]
    assert granularity.intervals[0].file.endswith("marlin/marlin.cu")
    assert granularity.intervals[0].sha256
