"""The paper's own tables against its claims: the verdicts that a reader of them would give."""

import polars as pl
import pytest
from nearfree.derive.claims.judge import CLAIMS
from nearfree.derive.claims.paper import CLAIMS_CHECKED
from nearfree.derive.tables.store import read_table
from nearfree.log.names import Layout

VERDICTS = [
    ("rq1", "dense_ffn", "torch", None, "partly", 5, 6),
    ("rq1", "attention", "flashinfer", None, "holds", 8, 8),
    ("rq2", "dense_ffn", "torch", None, "holds", 6, 6),
    ("rq2", "moe_ffn", "vllm_0_9_1", "balanced", "fails", 0, 8),
    ("rq2", "attention", "flash_attn_2", None, "fails", 0, 8),
    ("rq3", "dense_ffn", None, None, "undecided", 0, 0),
    ("finding_1", "dense_ffn", "torch", None, "holds", 21, 21),
    ("finding_2", "moe_ffn", "vllm_0_9_1", None, "partly", 19, 24),
    ("finding_3", "attention", "flash_attn_2", None, "holds", 36, 36),
    ("finding_3", "attention", "flashinfer", None, "partly", 21, 36),
    ("dense_inverse_batch", "dense_ffn", "torch", None, "holds", 15, 15),
    ("moe_balanced_law", "moe_ffn", "sglang_0_5_9", "balanced", "holds", 8, 8),
    ("moe_skewed_is_m_moe", "moe_ffn", "vllm_0_9_1", "skewed", "fails", 4, 8),
    ("moe_skewed_is_m_moe", "moe_ffn", "sglang_0_5_9", "skewed", "fails", 4, 8),
    ("balanced_above_skewed", "moe_ffn", "vllm_0_9_1", None, "partly", 7, 8),
    ("balanced_above_skewed", "moe_ffn", "sglang_0_5_9", None, "holds", 8, 8),
    ("attention_constant_over_context", "attention", "flash_attn_2", None, "holds", 28, 28),
    ("attention_constant_over_context", "attention", "flashinfer", None, "partly", 15, 28),
    ("moe_backends_agree", "moe_ffn", None, "balanced", "holds", 8, 8),
    ("moe_backends_agree", "moe_ffn", None, "skewed", "partly", 7, 8),
    ("tile_before_idle", "attention", "flash_attn_2", None, "fails", 0, 8),
    ("tile_before_idle", "attention", "flashinfer", None, "holds", 8, 8),
    ("tolerance_same", "moe_ffn", "vllm_0_9_1", "balanced", "holds", 8, 8),
    ("tolerance_same", "moe_ffn", "vllm_0_9_1", "skewed", "holds", 8, 8),
    ("tolerance_same_long_context", "attention", "flash_attn_2", None, "holds", 4, 4),
    ("tolerance_same_long_context", "attention", "flashinfer", None, "fails", 0, 4),
    ("tolerance_dense_one_step", "dense_ffn", "torch", None, "holds", 6, 6),
    ("tolerance_monotone", "attention", "flashinfer", None, "holds", 8, 8),
    ("idle_up_to_23", None, None, None, "holds", 1, 1),
    ("idle_over_in_most", None, None, None, "holds", 1, 1),
    ("lookup_follows", None, None, None, "holds", 9, 9),
    ("balance_grows", "dense_ffn", None, None, "partly", 423, 706),
    ("tile_stays", "attention", None, None, "holds", 465, 465),
]  # fmt: skip
"""Claim, module, backend, routing; its verdict, and how many of how many cases agree."""


@pytest.mark.parametrize(
    ("keys", "numbers"),
    [(row[:4], row[4:]) for row in VERDICTS],
    ids=["-".join(str(cell) for cell in row[:4]) for row in VERDICTS],
)
def test_the_papers_tables_are_judged_by_their_numbers(
    public: Layout, keys: tuple[str | None, ...], numbers: tuple[str | int, ...]
) -> None:
    """Each verdict is the one that follows from the printed numbers alone."""
    rows = read_table(public, "public", CLAIMS)
    named = dict(zip(("claim", "module", "backend", "routing"), keys, strict=True))
    same = [pl.col(name).eq_missing(pl.lit(value)) for name, value in named.items()]
    assert rows.filter(*same).select("verdict", "kept", "checked").rows() == [numbers]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("claim", "backend", "worst"),
    [
        ("moe_skewed_is_m_moe", "vllm_0_9_1", "k = 2: N_max 512, M_moe / b 16"),
        ("tolerance_same_long_context", "flashinfer", "16 at 5% to 20%, 64 at 30%"),
        ("balanced_above_skewed", "vllm_0_9_1", "N_max 256 balanced, N_max 512 skewed"),
    ],
)
def test_the_worst_case_has_its_numbers(
    public: Layout, claim: str, backend: str, worst: str
) -> None:
    """The worst case of a claim is listed with the printed numbers."""
    rows = read_table(public, "public", CLAIMS).filter(claim=claim, backend=backend)
    assert worst in rows["worst"][0]
    assert worst in rows["why"][0]


def test_every_claim_has_a_row(public: Layout) -> None:
    """A claim without evidence has an undecided row for each of its modules."""
    rows = read_table(public, "public", CLAIMS)
    for claim in CLAIMS_CHECKED:
        for module in claim.modules:
            assert rows.filter(claim=claim.name, module=module).height, claim.name
    bare = rows.filter(checked=0)
    assert set(bare["verdict"]) == {"undecided"}
    assert bare["origin"].is_null().all()
    assert (bare["from_ids"].list.len() == 0).all(), "nothing was checked"
    assert bare["why"].str.starts_with("not in the log of public: ").all()


def test_a_checked_row_says_where_its_numbers_come_from(public: Layout) -> None:
    """Nothing of the paper's scope is measured, and every count fits."""
    rows = read_table(public, "public", CLAIMS)
    assert set(rows["origin"].drop_nulls()) == {"published"}
    assert (rows["kept"] + rows["unclear"] <= rows["checked"]).all()
