"""FlashInfer's rules: the packed tile of fa2, the tile of fa3, and the choice of auto."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from nearfree.errors import EvidenceError, SourceError
from nearfree.sources.attention import AttentionQuery, Tile
from nearfree.sources.backends import flashinfer
from nearfree.sources.language.rule import Rule
from once import one_in

from sources.backends.flashinfer_snippets import (
    BACKEND,
    PLANNERS,
    SELECTOR,
    changed,
    rules,
    rules_of,
)
from sources.conftest import Releases


def ask(
    known: dict[str, Rule], positions: int, *, group: int = 4, head_dim: int = 128, **changes: Any
) -> Tile:
    """Return the tile of a call of four key-value heads."""
    query = AttentionQuery(heads=4 * group, kv_heads=4, head_dim=head_dim, **changes)
    return flashinfer.tile(known, query, positions)


def selected(known: dict[str, Rule], length: int, head_dim: int = 128, **changes: Any) -> int:
    """Return CTA_TILE_Q of a packed length, by default on 8.0 in 16 bits."""
    facts = {"cc_major": 8, "cc_minor": 0, "smem_per_block": 166912, "kv_dtype_bytes": 2}
    facts |= {"avg_packed_qo_len": length, "head_dim": head_dim, "head_dim_qk": head_dim}
    value: int = known["tile"].value(facts | changes).value
    return value


def check_classic_table(known: dict[str, Rule]) -> None:
    """Check the table of 16, 64 and 128 rows at its bounds."""
    table = {1: 16, 16: 16, 17: 64, 64: 64, 65: 128, 4096: 128}
    assert {length: selected(known, length) for length in table} == table
    assert [selected(known, length, 256) for length in (16, 17, 65, 4096)] == [16, 64, 64, 64]
    assert [selected(known, length, cc_major=7) for length in (1, 64, 65)] == [64, 64, 128]


def test_the_table_is_read_and_comments_are_not() -> None:
    """16 rows up to 16, 64 up to 64, 128 beyond for head sizes below 256."""
    check_classic_table(rules())


def test_the_packed_length_is_rows_times_heads_of_a_group() -> None:
    """The tile follows N g, with a CUDA graph the captured plan's rows."""
    packed = rules()["packed_length"]
    facts = {"num_qo_heads": 16, "num_kv_heads": 4, "head_dim": 128, "batch_size": 3}
    eager = facts | {"qo_len": 5, "enable_cuda_graph": False, "total_num_rows": 96}
    assert packed.value(eager).value == (20, 128)
    assert packed.value(eager | {"enable_cuda_graph": True}).value == ((96 - 3 + 1) * 4, 128)


def test_a_tile_of_packed_rows_is_shared_by_the_heads_of_a_group() -> None:
    """With four heads a group, 128 rows are 32 positions, and the 33rd takes another tile."""
    known = rules()
    answers = [ask(known, n, sm=90, backend="fa2") for n in (1, 4, 5, 16, 17, 32, 33)]
    assert [answer.tile for answer in answers] == [16, 16, 64, 64, 128, 128, 128]
    assert [answer.tiles for answer in answers] == [1, 1, 1, 1, 1, 1, 2]
    assert {answer.rows_per_position for answer in answers} == {4}
    assert {answer.path for answer in answers} == {"fa2"}


def test_a_cuda_graph_freezes_the_tile_at_its_capture() -> None:
    """Under a CUDA graph the tile is that of the captured plan, whatever is replayed."""
    known = rules()
    captured: dict[str, Any] = {"sm": 90, "backend": "fa2", "batch": 4, "capture_positions": 64}
    answers = [ask(known, n, **captured) for n in (1, 32, 33)]
    assert [(answer.path, answer.tile) for answer in answers] == [("fa2_cuda_graph", 128)] * 3
    assert [answer.tiles for answer in answers] == [1, 1, 2]
    with pytest.raises(EvidenceError, match="captured for 64 positions"):
        ask(known, 65, **captured)


@pytest.mark.parametrize(("head_dim", "rows"), [(64, 192), (128, 128), (256, 128)])
def test_auto_is_fa3_on_sm90_with_a_tile_of_unpacked_rows(head_dim: int, rows: int) -> None:
    """On sm90 auto is fa3 with 192 rows at head size 64, else 128, unpacked."""
    answers = [ask(rules(), n, head_dim=head_dim, sm=90) for n in (rows, rows + 1)]
    assert [(answer.path, answer.tile, answer.rows_per_position) for answer in answers] == [
        ("fa3", rows, 1)
    ] * 2
    assert [answer.tiles for answer in answers] == [1, 2]


@pytest.mark.parametrize("sm", [75, 80, 89, 100, 120])
def test_auto_is_fa2_elsewhere(sm: int) -> None:
    """On other compute capabilities auto is fa2."""
    assert ask(rules(), 64, sm=sm).path == "fa2"


def test_the_branch_of_the_tile_comes_first_and_is_quoted() -> None:
    """An answer quotes the tile's line first, then the length's and the backend's."""
    answer = ask(rules(), 64, sm=80)
    assert len(answer.branches) == 3
    assert any("return 128" in quote.text for quote in answer.branches[0].quotes)
    assert answer.branches[2].value == "'fa2'"


def test_a_missing_fact_is_named() -> None:
    """An answer that depends on the compute capability is refused without it."""
    known = rules()
    with pytest.raises(EvidenceError, match="compute capability"):
        ask(known, 1)
    with pytest.raises(EvidenceError, match="compute capability"):
        ask(known, 1, backend="fa2")
    assert ask(known, 64, backend="fa2").tile == 128


def test_what_auto_takes_for_granted_is_said() -> None:
    """An answer of auto notes the CUDA release that it assumes."""
    query = AttentionQuery(heads=16, kv_heads=4, head_dim=128)
    assert "CUDA 12.8" in flashinfer.notes(query)[0]
    assert flashinfer.notes(AttentionQuery(heads=1, kv_heads=1, head_dim=64, backend="fa2")) == ()


def test_no_rule_for_auto_is_said() -> None:
    """A release without a choice of backends answers for a named backend only."""
    known = rules(backend="")
    assert ask(known, 64, sm=80, backend="fa2").tile == 128
    with pytest.raises(EvidenceError, match="no rule backend"):
        ask(known, 64, sm=80)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("ceil_div(packed_qo_len_arr[i], cta_tile_q)", "packed_qo_len_arr[i]"),
        ("* int64_t(gqa_group_size)", ""),
    ],
)
def test_a_lost_link_refuses_the_answer(old: str, new: str) -> None:
    """If the lines from tile to kernel are gone, nothing is answered."""
    with pytest.raises(EvidenceError, match="gone"):
        ask(rules(planners=PLANNERS.replace(old, new)), 64, sm=80)


def test_a_ragged_wrapper_that_changes_its_mind_is_not_answered_for() -> None:
    """If the ragged wrapper replaces auto's choice, auto is refused for it."""
    wrapper = (
        "class BatchPrefillWithRaggedKVCacheWrapper:\n"
        "    def plan(self):\n"
        "        self._backend = determine_attention_backend(self.device)\n"
        "        self._backend = 'other'\n"
    )
    known = rules_of({**changed(), "flashinfer/prefill.py": wrapper})
    with pytest.raises(EvidenceError, match="ragged"):
        ask(known, 64, sm=80, api="varlen")
    assert ask(known, 64, sm=80, api="varlen", paged=True).path == "fa2"
    assert ask(known, 64, sm=80, api="varlen", backend="fa2").path == "fa2"


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({"selector": SELECTOR.replace("FA2DetermineCtaTileQ", "Choose")}, "defined nowhere"),
        ({"selector": SELECTOR + SELECTOR}, "must be defined once"),
        ({"selector": SELECTOR.replace("return 128;", "return 128")}, "does not parse"),
        ({"selector": SELECTOR.replace("return 128;", "return tuned(head_dim);")}, "tuned"),
        ({"selector": SELECTOR.replace("head_dim < 256", "~head_dim")}, "opaque"),
        ({"selector": SELECTOR.replace("head_dim < 256", "sms < 256")}, "'sms' is unknown"),
        ({"planners": PLANNERS.replace("PrefillSM90Plan", "Plan")}, "PrefillSM90Plan"),
        ({"planners": PLANNERS.replace("uint64_t(max_seq_len)", "guess(batch_size)")}, "guess"),
        ({"planners": PLANNERS.replace("sum += packed", "sum += i * packed")}, "'i' is unknown"),
        ({"backend": BACKEND + BACKEND}, "must be defined once"),
        ({"backend": BACKEND.replace("major == 9", "fast(device)")}, "fast"),
        ({"backend": BACKEND.replace("return False", "return (")}, "is not Python"),
    ],
)
def test_what_is_not_understood_is_refused(files: dict[str, str], why: str) -> None:
    """A renamed, repeated, broken or unknown part is refused by name."""
    with pytest.raises(SourceError, match=re.escape(why)):
        rules(**files)


def test_a_new_threshold_changes_the_meaning_and_a_new_spelling_does_not() -> None:
    """The digest follows the rule's answers, not its text."""
    plain = rules()["tile"].rule.meaning
    spelled = SELECTOR.replace("avg_packed_qo_len > 16 ?", "avg_packed_qo_len >= 17 ?")
    moved = SELECTOR.replace("avg_packed_qo_len > 16 ?", "avg_packed_qo_len > 17 ?")
    assert rules(selector=spelled)["tile"].rule.meaning == plain
    assert rules(selector=moved)["tile"].rule.meaning != plain


Real = Callable[[str], dict[str, Rule]]
EARLIER = ["0.2.0.post1", "0.2.5", "0.4.0", "0.5.3"]


@pytest.fixture
def real(release: Releases) -> Real:
    """Return a function that gives the rules of a real release."""
    return lambda version: release(flashinfer.PACKAGE, version).by_name()


@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.6.13", *EARLIER[one_in(3, "flashinfer")]])
def test_the_table_holds_from_0_2_0_to_0_6_13(real: Real, version: str) -> None:
    """16, 64 and 128 by the packed length; the head sizes of 512 are as 256."""
    known = real(version)
    check_classic_table(known)
    assert [selected(known, length, 512) for length in (16, 17, 33)] == [16, 64, 64]


@pytest.mark.slow
def test_large_heads_have_a_table_of_their_own_from_0_6_14(real: Real) -> None:
    """At head size 512, 16 rows up to a length of 32, else 32, on old devices too."""
    known = real("0.6.14")
    check_classic_table(known)
    assert [selected(known, length, 512) for length in (1, 32, 33)] == [16, 16, 32]
    assert [selected(known, length, 512, cc_major=7) for length in (32, 33)] == [16, 32]


@pytest.mark.slow
def test_a_promised_length_replaces_the_captured_one_from_0_6_16(real: Real) -> None:
    """Under a CUDA graph, uniform_q_len gives N*g; without it, the captured rows count."""
    facts = {"num_qo_heads": 16, "num_kv_heads": 4, "head_dim": 128, "batch_size": 2, "qo_len": 8}
    facts |= {"enable_cuda_graph": True, "total_num_rows": 128, "uniform_q_len": 8}
    captured = (128 - 2 + 1) * 4
    assert real("0.6.15")["packed_length"].value(facts).value == (captured, 128)
    assert real("0.6.16")["packed_length"].value(facts).value == (32, 128)
    unpromised = facts | {"uniform_q_len": 0}
    assert real("0.6.16")["packed_length"].value(unpromised).value == (captured, 128)


@pytest.mark.slow
def test_the_probe_of_shared_memory_is_read_from_0_6_18(real: Real) -> None:
    """Keys of 512 take 16 rows; a tile of 16 that does not fit shared memory becomes one of 64."""
    known = real("0.6.18")
    check_classic_table(known)
    assert [selected(known, n, 256, head_dim_qk=512) for n in (1, 65)] == [16, 16]
    small = {"head_dim_qk": 448, "smem_per_block": 101376}
    assert selected(known, 1, 256, **small) == 64
    assert selected(known, 1, 256, **small, kv_dtype_bytes=1) == 16
    assert selected(real("0.6.17"), 1, 256, **small) == 16


@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.2.0.post1", "0.6.13", "0.7.2.post1"])
def test_real_releases_answer_as_their_schedulers_do(real: Real, version: str) -> None:
    """Auto is fa3 on sm90; fa2 packs; a CUDA graph freezes the tile; each link is found."""
    known = real(version)
    assert [ask(known, 1, head_dim=d, sm=90).tile for d in (64, 128, 256)] == [192, 128, 128]
    assert ask(known, 1, sm=80).path == "fa2"
    assert [ask(known, n, sm=90, backend="fa2").tiles for n in (32, 33)] == [1, 2]
    assert ask(known, 1, sm=90, backend="fa2", capture_positions=64).tile == 128
    absent = {name for name, rule in known.items() if rule.rule.branches[0].value == "'absent'"}
    assert absent <= {"mechanism_ragged_auto"}
