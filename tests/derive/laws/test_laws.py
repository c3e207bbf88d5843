"""The laws over frames: the paper's own score, its extensions, and every refusal by name."""

import math
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nearfree.config.files import Config
from nearfree.core.predictors import LAWS
from nearfree.derive.granularity.facts import datasheet_facts
from nearfree.derive.laws.laws import ANSWERS_SCHEMA, answer_laws, ask_distinct
from nearfree.errors import ConfigError
from nearfree.log.events import BoundaryPublished
from nearfree.log.evidence import read_scope
from polars.testing import assert_frame_equal

from derive.questions import (
    ATTENTION,
    DENSE,
    FACTS,
    LOG,
    MOE,
    RESOLVER,
    ROOT,
    answer,
    answers,
    ask,
)
from derive.work_model.forms import MLA

PRINTED = [
    event.data
    for take in read_scope(LOG, "public")
    for event in take.events_of(BoundaryPublished)
    if event.data.quantity == "n_max"
]
EPSILONS = sorted({printed.epsilon or 0.0 for printed in PRINTED})


def printed_hits() -> pl.DataFrame:
    """Return whether each law hits each boundary of the paper's sensitivity tables."""
    settings_ = list(dict.fromkeys(printed.setting for printed in PRINTED))
    baselines = {printed.setting: printed.baseline for printed in PRINTED}
    fields = [
        {name: getattr(setting, name) for name in setting.__struct_fields__}
        | {"platform": "h20", "backend_version": "", "baseline": baselines[setting]}
        for setting in settings_
    ]
    law_answers = answer_laws(ask(*fields), FACTS, EPSILONS, RESOLVER)
    truth = pl.DataFrame(
        {
            "asked": settings_.index(printed.setting),
            "epsilon": printed.epsilon,
            "truth": printed.n_max,
            "next_n": float(min((n for n in printed.grid if n > printed.n_max), default=math.inf)),
        }
        for printed in PRINTED
    )
    hit = pl.col("n_max").is_between("truth", "next_n", closed="left")
    return truth.join(law_answers, on=["asked", "epsilon"]).with_columns(hit.alias("hit"))


def test_the_principle_hits_44_of_the_papers_54_settings() -> None:
    """On the inferred grids, at a tolerance of 0.2; and 189 of 270 over all five tolerances.

    On the releases that the paper measured the resolved law is the printed one.
    """
    hits = printed_hits()
    assert hits.height == 270 * len(LAWS)
    for law in ("principle", "principle_resolved"):
        mine = hits.filter(predictor=law)
        assert mine.filter(epsilon=0.2)["hit"].to_list().count(True) == 44
        assert mine["hit"].to_list().count(True) == 189


def test_a_law_answers_the_same_at_each_tolerance() -> None:
    """A row a tolerance, equal in all else, in the columns that answers have."""
    law_answers = answer_laws(ask(DENSE, MOE), FACTS, [0.05, 0.2], RESOLVER)
    assert dict(law_answers.schema) == ANSWERS_SCHEMA
    loose, tight = (law_answers.filter(epsilon=epsilon).drop("epsilon") for epsilon in (0.05, 0.2))
    assert loose.height == 2 * len(LAWS)
    assert_frame_equal(loose, tight)


def test_laws_can_be_asked_one_by_one() -> None:
    """Only those that are named answer; an unknown name is refused."""
    law_answers = answer_laws(ask(DENSE), FACTS, [0.2], RESOLVER, ["principle"])
    assert law_answers["predictor"].to_list() == ["principle"]
    with pytest.raises(ConfigError, match="no law 'oracle'"):
        answer_laws(ask(DENSE), FACTS, [0.2], RESOLVER, ["oracle"])


def test_no_questions_give_no_rows() -> None:
    """An empty frame of questions gives an empty frame of answers."""
    assert answer_laws(ask(), FACTS, [0.2], RESOLVER).is_empty()


@given(st.sampled_from([8, 16, 64, 128]), st.sampled_from(["balanced", "skewed"]))
@settings(deadline=None, max_examples=8)
def test_with_one_request_the_extension_is_the_papers_law(top_k: int, routing: str) -> None:
    """At b = 1 batch changes nothing; two matrices and g = 1 are the paper's form."""
    moe = {**MOE, "top_k": top_k, "routing": routing, "gated": False}
    for rows in answers(moe, DENSE, {**DENSE, "module": "gemm"}, ATTENTION):
        for row in rows.values():
            assert row["n_max"] == row["n_max_extended"]


@pytest.mark.parametrize(
    ("routing", "paper", "extended"), [("balanced", 256.0, 64.0), ("skewed", 16.0, 4.0)]
)
def test_batch_extends_the_moe_law(routing: str, paper: float, extended: float) -> None:
    """With b = 4, E = 256, k = 8: min(M E / (b k), tau / b) and M / b; the paper has no b."""
    law_answer = answer("principle", **MOE | {"routing": routing, "batch": 4})
    assert (law_answer["n_max"], law_answer["n_max_extended"]) == (paper, extended)


def test_gated_experts_extend_idle_compute() -> None:
    """Experts are gated where nothing is said; 6 and 3 stand for 4 and 2 (37 * 2 bytes on H20)."""
    plain, gated, unsaid = (
        answer("idle_compute", **MOE, gated=gated) for gated in (False, True, None)
    )
    room = 74 * (1 + 3 * 8 + 2 * 8)
    two = 2 * 74 * 256 * 512 / (4 * 8 * 512 - room)
    three = 3 * 74 * 256 * 512 / (6 * 8 * 512 - room)
    assert plain["n_max"] == plain["n_max_extended"] == pytest.approx(two)
    assert gated["n_max"] == unsaid["n_max"] == pytest.approx(two)
    assert gated["n_max_extended"] == unsaid["n_max_extended"] == pytest.approx(three)


def test_a_gated_dense_ffn_has_the_same_boundary() -> None:
    """Its matrices cancel."""
    plain, gated = answers(DENSE, {**DENSE, "gated": True})
    for law in LAWS:
        assert plain[law]["n_max"] == gated[law]["n_max"] == gated[law]["n_max_extended"] == 37


def test_query_heads_that_share_keys_extend_idle_compute() -> None:
    """On H20 with L = 64: 74 * 64 / (128 g - 74), bounded for g = 8 and for g = 1."""
    law_answer = answer("idle_compute", **ATTENTION | {"context": 64, "kv_heads": 4})
    assert law_answer["n_max"] == pytest.approx(74 * 64 / (128 - 74))
    assert law_answer["n_max_extended"] == pytest.approx(74 * 64 / (8 * 128 - 74))


@pytest.mark.parametrize("question", [{**ATTENTION, "context": 37}, {**MOE, "d_ff": 64}])
def test_unbounded_is_infinite_and_no_refusal(question: dict[str, Any]) -> None:
    """Where FLOPs never catch up there is an answer: no limit."""
    law_answer = answer("idle_compute", **question)
    assert law_answer["n_max"] == math.inf
    assert law_answer["refusal"] is None


def test_an_answer_names_its_limit_and_its_evidence() -> None:
    """The smallest term, the next one over it, and where the law and its rule stand."""
    rows = answers({**MOE, "top_k": 32})[0]
    assert [rows[law]["limiting_term"] for law in LAWS] == [
        "AI(N) = rho with E_act", "M_moe E / (b k)", "M_moe E / (b k)",
    ]  # fmt: skip
    assert [rows[law]["margin"] for law in LAWS] == [None, 2.0, 2.0]
    assert "tab:vllm-moe-block-size-m" in rows["principle"]["evidence"]
    assert "fused_moe.py:" in rows["principle_resolved"]["evidence"]
    assert {row["limiting_module"] for row in rows.values()} == {"moe_ffn"}


def test_the_resolved_law_follows_the_release() -> None:
    """Since 0.17 the block is 16 up to 32 tokens, the baseline of E = 256, k = 8."""
    law_answer = answer("principle_resolved", **MOE | {"backend_version": "0.20.2"})
    assert (law_answer["n_max"], law_answer["limiting_term"]) == (32.0, "tau / b")
    assert answer("principle", **MOE | {"backend_version": "0.20.2"})["n_max"] == 256


@pytest.mark.parametrize(
    ("changes", "n_max", "path"),
    [
        ({}, 1.0, "naive"),
        ({"batch": 8}, 1 / 8, "naive"),
        ({"batch": 9}, 16 / 9, "aligned"),
        ({"ep": 2}, 16.0, "aligned"),
        ({"routing": "balanced"}, 32.0, "aligned"),
    ],
)
def test_pairs_without_alignment_have_no_slack(
    changes: dict[str, Any], n_max: float, path: str
) -> None:
    """Up to E / 4 pairs vLLM 0.20.2 gives each a block of its own, which no position shares."""
    skewed = MOE | {"backend_version": "0.20.2", "routing": "skewed"}
    law_answer = answer("principle_resolved", **skewed | changes)
    assert law_answer["n_max"] == pytest.approx(n_max)
    assert f"path {path}" in law_answer["evidence"]


@pytest.mark.parametrize(
    ("backend", "expected"),
    [
        ({"backend": "flash_attn", "api": "kvcache", "backend_version": "2.8.3"}, 64),
        ({"backend": "flashinfer_fa2", "backend_version": "0.6.13"}, 16),
        ({"backend": "flashinfer"}, 16),
    ],
)
def test_attention_is_its_tile_at_one_position(backend: dict[str, Any], expected: int) -> None:
    """Measured backends are the paper's where they make its call."""
    rows = answers({**ATTENTION, **backend})[0]
    assert rows["principle"]["n_max"] == rows["principle_resolved"]["n_max"] == expected


@given(
    st.lists(
        st.builds(
            lambda base, **changes: base | changes,
            st.sampled_from([DENSE, MOE, ATTENTION, {"module": "model"}]),
            platform=st.sampled_from(["h20", "a100", "cpu", "mars"]),
            backend=st.sampled_from(["vllm", "sglang_0_5_9", "flashinfer", "trtllm"]),
            dtype=st.sampled_from(["bfloat16", "float8", "float32"]),
            kernel=st.sampled_from([None, "vllm_fused_moe", "marlin"]),
            batch=st.integers(1, 6000),
            context=st.sampled_from([None, 0, 1, 4096]),
            routing=st.sampled_from([None, "balanced", "skewed", "power_law"]),
            top_k=st.sampled_from([None, 1, 8, 300]),
        ),
        min_size=1,
        max_size=4,
    )
)
@settings(deadline=None, max_examples=40)
def test_each_answer_is_a_value_or_a_refusal(questions: list[dict[str, Any]]) -> None:
    """Exactly one of them, for every question and law; a value comes with its limit."""
    law_answers = answer_laws(ask(*questions), FACTS, [0.1, 0.2], RESOLVER)
    assert law_answers.select("asked", "predictor", "epsilon").n_unique() == law_answers.height
    assert law_answers.height == 2 * len(LAWS) * len(questions)
    refused = law_answers["refusal"].is_not_null()
    for name in ("n_max", "n_max_extended", "limiting_module", "limiting_term", "evidence"):
        assert (law_answers[name].is_null() == refused).all()
    assert (law_answers["n_max"].drop_nulls() > 0).all()


def test_the_order_of_questions_changes_nothing() -> None:
    """Each question is answered independently of the others."""
    questions = ask(MOE, ATTENTION, DENSE, MOE | {"top_k": 32}, MOE | {"routing": "skewed"})
    forth = answer_laws(questions, FACTS, [0.2], RESOLVER)
    back = answer_laws(questions.reverse(), FACTS.reverse(), [0.2], RESOLVER)
    key = ["asked", "predictor"]
    assert_frame_equal(forth.sort(key), back.sort(key))


def test_facts_are_those_of_the_datasheets() -> None:
    """One row a platform and dtype, with the name that the driver reports."""
    sheets = Config(ROOT / "config").platforms
    facts = datasheet_facts(sheets)
    assert facts.select("platform", "dtype").n_unique() == facts.height
    row = facts.row(by_predicate=(pl.col("platform") == "h20") & (pl.col("dtype") == "bfloat16"))
    assert row[:9] == ("h20", "bfloat16", 148.0, 4000.0, 37.0, 90, 78, "NVIDIA H20", False)
    links = ("nvlink", "link_gb_s", "node_gpus", "machine_gpus", "direct", "network_gb_s",
             "host_cpu")  # fmt: skip
    assert row[9:] == tuple(getattr(sheets["h20"], link) for link in links)


def test_each_distinct_row_is_asked_once() -> None:
    """Answers stand in the rows' order, nulls are values, and what is left out is null."""
    questions = []

    def answer(row: dict[str, Any]) -> dict[str, object]:
        questions.append(tuple(row.values()))
        return {} if row["a"] is None else {"a": row["a"] + 1, "said": row["b"]}

    rows = pl.DataFrame({"a": [1, None, 1, 2, None], "b": ["x", "x", "x", "y", "x"], "c": range(5)})
    question_rows = ask_distinct(rows.select("a", "b"), answer, {"a": pl.Int64, "said": pl.String})
    assert question_rows.rows() == [(2, "x"), (None, None), (2, "x"), (3, "y"), (None, None)]
    assert questions == [(1, "x"), (None, "x"), (2, "y")]
    assert ask_distinct(rows.clear(), answer, {"said": pl.String}).is_empty()


EVERY = set(LAWS)
REFUSED: list[tuple[dict[str, Any], set[str], str]] = [
    ({"module": "model", "backend": "any"}, EVERY, "no law for the module model yet"),
    (MOE | {"routing": "power_law"}, EVERY, "no law for power_law routing"),
    (MOE | {"routing": "power_law:1.2"}, EVERY, "no law for power_law:1.2 routing"),
    (ATTENTION | {"context": 0}, EVERY, "attention without a cache"),
    (MOE | {"d_ff": None}, EVERY, "the moe_ffn setting lacks d_ff"),
    (ATTENTION | {"kv_heads": None}, EVERY, "the attention setting lacks kv_heads"),
    (DENSE | {"platform": "mars"}, EVERY, "no facts of mars"),
    (DENSE | {"platform": "a100", "dtype": "float8"}, EVERY, "a100 has no float8 units"),
    (MOE | {"platform": "cpu"}, {"idle_compute"}, "no phi of cpu for bfloat16"),
    (MOE | {"backend": "trtllm"}, {"principle"}, "the paper prints no M_moe of trtllm"),
    (MOE | {"backend": "trtllm"}, {"principle_resolved"}, "MoE kernels of trtllm"),
    (MOE | {"dtype": "float32"}, {"principle"}, "no M_moe of vllm for float32"),
    (MOE | {"kernel": "x_cutlass"}, {"principle"}, "no M_moe of the kernel x_cutlass"),
    (MOE | {"kernel": "x_cutlass"}, {"principle_resolved"}, "the MoE kernel x_cutlass"),
    (MOE | {"backend_version": "0.0.1"}, {"principle_resolved"}, "no rules of vllm 0.0.1"),
    (MOE | {"backend_version": ""}, {"principle_resolved"}, "no version of vllm"),
    (MOE | {"batch": 5000, "baseline": 1}, {"principle_resolved"}, "up to 4096 tokens, not 5000"),
    (ATTENTION | {"backend": "vllm"}, {"principle"}, "no M_attn of vllm for bfloat16"),
    (ATTENTION | {"backend": "vllm"}, {"principle_resolved"}, "attention kernels of vllm"),
    (ATTENTION | {"backend": "flash_attn"}, {"principle"}, "no M_attn of flash_attn"),
    (ATTENTION | {"platform": "mars"}, {"principle_resolved"}, "no compute capability"),
]


@pytest.mark.parametrize(("question", "laws", "missing"), REFUSED)
def test_what_is_missing_is_named(question: dict[str, Any], laws: set[str], missing: str) -> None:
    """A law without its rule or fact is refused with the name of what is missing."""
    rows = answers(question)[0]
    for law in laws:
        assert missing in rows[law]["refusal"]
        named = {name for name, value in rows[law].items() if value is not None}
        assert named == {"asked", "predictor", "epsilon", "refusal"}


def test_a_platform_without_bandwidth_is_named() -> None:
    """Of the two facts behind rho the one that is missing is named."""
    facts = FACTS.with_columns(
        pl.lit(None, pl.Float64).alias("bandwidth_gb_s"),
        pl.lit(None, pl.Float64).alias("balance_flop_per_byte"),
    )
    law_answers = answer_laws(ask(DENSE), facts, [0.2], RESOLVER)
    assert set(law_answers["refusal"]) == {"no beta of h20"}


@pytest.mark.parametrize(
    ("changes", "rows"),
    [({}, 4.0), ({"heads": 128}, 1.0), ({"heads": 64}, 1.0), ({"selected": 2048}, 1.0),
     ({"platform": "b200", "heads": 8}, 1.0)],
)  # fmt: skip
def test_heads_of_a_latent_fill_the_tile(changes: dict[str, Any], rows: float) -> None:
    """Resolved, latent attention's term is R / H positions, and one where a tile holds only one."""
    question = {**MLA, "backend": "vllm_mla", "kernel": None, "backend_version": "0.20.2",
                "platform": "h100", **changes}  # fmt: skip
    (answer_rows,) = answers(question)
    principle_rows = answer_rows["principle_resolved"]
    assert principle_rows["n_max"] == rows
    assert principle_rows["limiting_term"] == "M_mla"
    assert "mla" in principle_rows["evidence"]
    assert "paper prints none" in (answer_rows["principle"]["refusal"] or "")


def test_a_threshold_comes_before_the_tile() -> None:
    """Up to 0.14 vLLM decodes one position on Blackwell; over a few heads the tile holds more."""
    question = {**MLA, "backend": "vllm_mla", "kernel": None, "heads": 8, "platform": "h100"}
    narrow, wide = answers(
        {**question, "backend_version": "0.14.0", "platform": "b200"},
        {**question, "backend_version": "0.14.0"},
    )
    assert narrow["principle_resolved"]["n_max"] == 1
    assert wide["principle_resolved"]["n_max"] == 8
