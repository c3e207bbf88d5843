"""The resolver's order: path, override, tuned file, then the source's rule."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from nearfree.errors import EvidenceError
from nearfree.log.names import Layout
from nearfree.sources.answers.granularity import moe_granularity
from nearfree.sources.answers.intervals import Granularity
from nearfree.sources.answers.moe import MoeQuery
from nearfree.sources.language.reading import Mechanism, mechanism_rule
from nearfree.sources.record import recorded_extraction
from nearfree.sources.tuned import index_tuned

from sources.moe_release import PATH, TEXT, TUNED, made_release

LOG = Layout(Path(__file__).parents[3] / "results")
LAYER = {"experts": 256, "top_k": 8, "d_ff": 1024, "d_model": 4096, "device": "NVIDIA H20"}


def answer(first: int = 1, last: int = 600, **given: Any) -> Granularity:
    """Return the made-up release's answer for a layer."""
    return moe_granularity(made_release(), MoeQuery(**{**LAYER, **given}), first, last)


def values(granularity: Granularity) -> list[tuple[int, int, int, str]]:
    return [
        (interval.first, interval.last, interval.value, interval.source)
        for interval in granularity.intervals
    ]


def paths(granularity: Granularity) -> list[tuple[int, int, str]]:
    return [(path.first, path.last, path.path) for path in granularity.kernel_path]


def test_the_fallback_applies_where_no_file_is_tuned() -> None:
    """Intervals include both ends; above the chunk, the chunk's size counts."""
    assert values(answer()) == [
        (1, 40, 16, "fallback"),
        (41, 300, 32, "fallback"),
        (301, 600, 128, "fallback"),
    ]


def test_an_interval_quotes_its_lines() -> None:
    """An interval's lines go from its last condition to its value."""
    first = answer().intervals[0]
    lines = TEXT.splitlines()
    assert first.file == PATH
    assert first.sha256 == "b" * 64
    assert first.lines is not None
    assert "M <= 40" in lines[first.lines[0] - 1]
    assert "size = 16" in lines[first.lines[1] - 1]
    assert any("M <= 40" in (evidence.condition or "") for evidence in first.evidence)


def test_a_tuned_file_comes_before_the_fallback() -> None:
    """The nearest entry counts, and of two equally near ones the first in the file."""
    granularity = answer(d_ff=512, last=100)
    assert values(granularity) == [
        (1, 16, 16, "tuned"),
        (17, 47, 32, "tuned"),
        (48, 100, 64, "tuned"),
    ]
    assert granularity.intervals[0].file == next(iter(TUNED))
    assert granularity.intervals[0].lines == (2, 2)


def test_a_tuned_file_is_for_one_device_and_dtype() -> None:
    """Another device, another quantisation or another size finds no file."""
    for other in ({"device": "NVIDIA H800"}, {"dtype": "fp8"}, {"experts": 128}):
        assert answer(d_ff=512, **other).intervals[0].source == "fallback"


def test_an_override_comes_before_all() -> None:
    """An override holds for any number of tokens and names no file."""
    granularity = answer(d_ff=512, override=48)
    assert values(granularity) == [(1, 600, 48, "override")]
    assert granularity.intervals[0].sha256 is None


def test_a_folder_of_own_files_comes_before_those_of_the_release(tmp_path: Path) -> None:
    """The user's tuned file comes before the release's, with its own digest."""
    name = Path(next(iter(TUNED))).name
    raw = json.dumps({"1": {"BLOCK_SIZE_M": 80}}).encode()
    own = tuple(index_tuned("vllm", "1.0", {name: raw}))
    granularity = answer(d_ff=512, own=own)
    assert values(granularity) == [(1, 600, 80, "override")]
    assert granularity.intervals[0].sha256 == own[0].sha256


def test_deterministic_mode_leaves_tuned_files_aside() -> None:
    """In a release's deterministic mode tuned files are not used."""
    assert answer(d_ff=512, deterministic=True).intervals[0].source == "fallback"


def test_only_what_was_looked_for_is_said_to_be_missing() -> None:
    """The text "no file is tuned" is said only if files were looked for."""
    assert "whatever the device" in answer(device=None).notes[0]
    assert answer(device=None, deterministic=True).notes == ()
    assert answer(device=None, override=48).notes == ()


def test_few_tokens_take_a_path_without_alignment() -> None:
    """Up to E / (4 k) tokens each routed pair has a block of its own."""
    assert paths(answer()) == [(1, 8, "naive"), (9, 600, "aligned")]
    assert paths(answer(top_k=2)) == [(1, 32, "naive"), (33, 600, "aligned")]


def test_the_modular_experts_may_always_align() -> None:
    """If serving's class aligns by itself, it has one path."""
    assert paths(answer(modular=True)) == [(1, 600, "aligned")]


def test_a_quantisation_has_its_own_rule() -> None:
    """Block-wise FP8 has its own branch; per-tensor FP8 has that of 16 bits."""
    assert {interval.value for interval in answer(dtype="fp8_block").intervals} == {64}
    assert values(answer(dtype="fp8"))[0] == (1, 40, 16, "fallback")


def test_without_a_device_only_a_layer_that_nobody_tuned_has_an_answer() -> None:
    """An unknown device is refused only if the answer depends on it."""
    assert answer(device=None).intervals[0].source == "fallback"
    assert answer(device="no such thing").intervals[0].source == "fallback"
    with pytest.raises(EvidenceError, match="depends on the device"):
        answer(d_ff=512, device=None)


def test_an_odd_file_that_would_be_opened_is_refused() -> None:
    """A tuned file of unknown form is refused if it would be opened."""
    odd = made_release(tuned={next(iter(TUNED)): {"1": {"BLOCK_SIZE_N": 16}}})
    with pytest.raises(EvidenceError, match="no BLOCK_SIZE_M"):
        moe_granularity(odd, MoeQuery(**{**LAYER, "d_ff": 512}), 1, 10)  # type: ignore[arg-type]


def test_a_release_whose_blocks_align_nothing_is_refused() -> None:
    """A release that aligns no tokens by BLOCK_SIZE_M is refused."""
    release = made_release()
    lost = mechanism_rule(Mechanism("alignment", "tokens are padded"), "vllm", "1.0")
    rules = [rule for rule in release.rules if rule.rule != lost.rule]
    assert len(rules) == len(release.rules) - 1
    with pytest.raises(EvidenceError, match=r"vllm 1\.0: the lines for alignment,"):
        moe_granularity(replace(release, rules=(*rules, lost)), MoeQuery(**LAYER), 1, 10)  # type: ignore[arg-type]


def test_own_files_that_are_not_opened_are_told_of() -> None:
    """A file name that the release does not look for is reported with the right one."""
    raw = json.dumps({"1": {"BLOCK_SIZE_M": 80}}).encode()
    own = tuple(index_tuned("vllm", "1.0", {"E=1,N=2,device_name=NVIDIA_H20.json": raw}))
    (note,) = answer(own=own).notes
    assert note.endswith("its name would be E=256,N=1024,device_name=NVIDIA_H20.json")
    assert values(answer(own=own)) == values(answer())


def test_a_device_that_only_own_files_are_for_must_be_named() -> None:
    """A missing device is refused also if only the user's files depend on it."""
    raw = json.dumps({"1": {"BLOCK_SIZE_M": 80}}).encode()
    own = tuple(index_tuned("vllm", "1.0", {"E=256,N=1024,device_name=NVIDIA_B200.json": raw}))
    with pytest.raises(EvidenceError, match="tuned files for NVIDIA_B200"):
        answer(device=None, own=own)


def test_the_triton_that_a_release_pins_is_taken_for_granted() -> None:
    """SGLang 0.5.9 pins Triton 3.5.1, whose folder is opened by default."""
    extraction = recorded_extraction(LOG, "sglang", "0.5.9")
    assert extraction is not None
    query = MoeQuery(experts=8, top_k=2, d_ff=7168, d_model=4096, device="NVIDIA H100 80GB HBM3")
    folders = [
        moe_granularity(extraction, replace(query, triton=triton), 1, 64)
        .intervals[0]
        .file.split("/")[-2]
        for triton in (None, "3.5.1", "3.1.0")
    ]
    assert folders == ["triton_3_3_1", "triton_3_3_1", "triton_3_1_0"]


def test_impossible_layers_are_refused() -> None:
    """A top-k above the experts, and an empty range of tokens, are refused."""
    with pytest.raises(EvidenceError, match="top_k"):
        answer(top_k=300)
    with pytest.raises(EvidenceError, match="range"):
        answer(first=5, last=4)
