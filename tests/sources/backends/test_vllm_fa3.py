"""vLLM's FlashAttention 3: few rows take a smaller tile, by the pinned commits."""

import pytest
from derive.questions import LOG, ROOT
from msgspec.structs import replace
from nearfree.cli import main
from nearfree.errors import EvidenceError, SourceError
from nearfree.sources.attention import AttentionQuery
from nearfree.sources.backends import vllm_fa3
from nearfree.sources.extraction import Extraction
from nearfree.sources.fetching.fork import STANDS_IN
from nearfree.sources.history import lock_status, read_lock
from nearfree.sources.language.reading import Mechanism
from nearfree.sources.language.reading import mechanism_rule as absent
from nearfree.sources.language.rule import Rule
from nearfree.sources.record import recorded_extraction

DIMENSIONS = (64, 96, 128, 192, 256)
ASKED = AttentionQuery(
    heads=32, kv_heads=8, head_dim=128, sm=90, sms=132, api="varlen", paged=True, page_size=16
)
BINARIES = {
    "0.9.1": [192, 192, 64, 128, 128],
    "0.14.0": [64, 192, 64, 128, 128],
    "0.20.2": [64, 192, 64, 128, 128],
    "0.33.0": [64, 192, 64, 128, 128],
}
"""Rows of a tile for up to 64 rows, by dimension, as the kernels in `_vllm_fa3_C` are named."""


def recorded(version: str) -> Extraction:
    extraction = recorded_extraction(LOG, "vllm-fa3", version)
    assert extraction is not None
    return extraction


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("version", BINARIES)
def test_tiles_are_those_of_the_binaries(version: str, *, causal: bool) -> None:
    """At ten points per release, tiles are those of its own kernels."""
    rules = recorded(version).by_name()

    def rows(head_dim: int, positions: int) -> int:
        query = replace(ASKED, head_dim=head_dim, causal=causal)
        return vllm_fa3.tile(rules, query, positions).tile

    assert [rows(d, 16) for d in DIMENSIONS] == BINARIES[version]
    assert [rows(d, 17) for d in DIMENSIONS] == [192, 192, 128, 128, 128]


@pytest.mark.parametrize("version", BINARIES)
def test_a_window_has_the_tiles_of_its_own_kernels(version: str) -> None:
    """Since 0.20.2 calls with a window have no tile for few rows."""
    rules = recorded(version).by_name()

    def rows(context: int, window: int | None) -> list[int]:
        query = replace(ASKED, context=context, window=window)
        return [vllm_fa3.tile(rules, replace(query, head_dim=d), 1).tile for d in DIMENSIONS]

    local = [192, 192, 128, 128, 128] if version in {"0.20.2", "0.33.0"} else BINARIES[version]
    assert rows(129, 128) == rows(4096, 128) == local
    assert rows(128, 128) == rows(4096, None) == BINARIES[version]


@pytest.mark.parametrize("version", BINARIES)
def test_the_evidence_is_named(version: str) -> None:
    """An answer names its commit, and for 0.33.0 the stand-in."""
    (source,) = recorded(version).fetched
    assert source.verified == ("stand_in" if version == "0.33.0" else "commit")
    assert ("which was not to be had" in source.artefact) == (version == "0.33.0")
    assert {"hopper/heuristics.h", "CMakeLists.txt"} <= {member.path for member in source.members}


def test_other_calls_are_refused() -> None:
    """Calls that vLLM never makes, and those without a needed page size, are refused."""
    rules = recorded("0.20.2").by_name()
    with pytest.raises(EvidenceError, match="no dense call"):
        vllm_fa3.tile(rules, replace(ASKED, api="dense"), 1)
    with pytest.raises(EvidenceError, match="page size"):
        vllm_fa3.tile(rules, replace(ASKED, page_size=None), 4096)


def test_a_lost_grid_refuses_the_answer() -> None:
    """If blocks no longer count rows of packed heads, nothing is answered."""
    lost = absent(Mechanism("grid", "blocks count rows"), "vllm-fa3", "1.0")
    with pytest.raises(EvidenceError, match=r"vllm-fa3 1\.0: the lines for grid,"):
        vllm_fa3.tile({**recorded("0.20.2").by_name(), lost.rule: Rule(lost)}, ASKED, 1)


def test_conditions_are_those_of_the_build() -> None:
    """The build's definitions decide conditions; lines do not move."""
    text = "#ifdef FLASHATTENTION_A\nint f() { return 1; }\n#else\nint f() { return 2; }\n#endif\n"
    names = "  {}FLASHATTENTION_A # why\n FLASHATTENTION_C\n"
    build = f"target_compile_definitions(_vllm_fa3_C PRIVATE\n{names})"
    for mark, line in (("", 2), ("# ", 4)):
        files = {"a.cpp": text, vllm_fa3.BUILD: build.format(mark) + " FLASHATTENTION_B"}
        assert vllm_fa3.built(files).locate("f").node.start_point[0] + 1 == line
    with pytest.raises(SourceError, match="defines nothing"):
        vllm_fa3.built({"a.cpp": text, vllm_fa3.BUILD: ""})


@pytest.mark.parametrize("version", BINARIES)
def test_what_is_on_record_is_as_locked(version: str) -> None:
    """The lock lists each release of the fork in the log."""
    lock = read_lock(ROOT / "config" / "rules.lock")
    assert lock_status(lock, recorded(version)) == "as locked"


@pytest.mark.parametrize("version", BINARIES)
def test_a_stand_in_is_said_in_words(
    version: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rules and answers of 0.33.0 name the stand-in commit; others name none."""
    monkeypatch.chdir(ROOT)
    release = f"vllm-fa3=={version}"
    layer = ("--heads", "32", "--kv-heads", "8", "--head-dim", "128", "--sm", "90", "--sms", "132",
             "--page-size", "16")  # fmt: skip
    for argv in (("rules", "show", release), ("granularity", release, *layer)):
        with pytest.raises(SystemExit) as ended:
            main((*argv, "--offline"))
        assert not ended.value.code
        assert (STANDS_IN in capsys.readouterr().out) == (version == "0.33.0")
