"""Which form answers a question, or why none does."""

from typing import Any

import polars as pl
import pytest
from nearfree.derive.granularity.facts import FACTS_SCHEMA
from nearfree.derive.work_model.families import FAMILIES, carried, family_of, times_refusal

from derive.questions import ATTENTION, DENSE, MOE
from derive.work_model.forms import GEMM, OF_FAMILY, PREFILL, facts_of

TRITON = OF_FAMILY["moe_triton"]


def judged(question: dict[str, Any], **facts: Any) -> tuple[str | None, str | None]:
    """Return the family of a question and its refusal; `facts` replace those of its platform."""
    changes = [pl.lit(value, FACTS_SCHEMA[name]).alias(name) for name, value in facts.items()]
    row = facts_of(question).with_columns(changes)
    return row.with_columns(family_of(row)).select("family", times_refusal().alias("why")).row(0)


@pytest.mark.parametrize(
    ("question", "family"),
    [
        *[(question, name) for name, question in OF_FAMILY.items()],
        (DENSE, "gemm"),
        ({**TRITON, "kernel": "TritonExperts"}, "moe_triton"),
        ({**TRITON, "backend": "sglang_0_5_9", "routing": "skewed"}, "moe_triton"),
        ({**TRITON, "kernel": "flashinfer_cutlass"}, "moe_library"),
        ({**TRITON, "backend": "trtllm", "kernel": "moe_torch_flow"}, "moe_library"),
        ({**PREFILL, "dtype": "float16"}, "attention_prefill"),
    ],
)
def test_a_question_has_one_form(question: dict[str, Any], family: str) -> None:
    """Module, context, backend and kernel determine the form."""
    assert judged(question) == (family, None)
    assert family in FAMILIES


REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"module": "model", "backend": "vllm"}, {}, "no law for the module model yet"),
    ({**MOE, "routing": "power_law"}, {}, "no loads of power_law routing"),
    *[
        ({**MOE, "routing": "skewed", field: None}, {}, f"the moe_ffn setting lacks {field}")
        for field in ("d_model", "d_ff", "experts", "top_k")
    ],
    ({**MOE, "routing": "router"}, {}, "no loads of router routing"),
    ({**MOE, "routing": None}, {}, "the moe_ffn setting lacks routing"),
    *[
        ({**ATTENTION, field: None}, {}, f"the attention setting lacks {field}")
        for field in ("context", "heads", "kv_heads", "head_dim")
    ],
    ({**GEMM, "platform": "mars"}, {}, "no facts of mars"),
    (GEMM, {"peak_tflops": None}, "no phi of h20 for bfloat16"),
    (GEMM, {"bandwidth_gb_s": None}, "no beta of h20"),
    (GEMM, {"sm_count": None}, "no number of SMs of h20"),
    ({**GEMM, "dtype": "float32"}, {"peak_tflops": 1.0},
     "no constants of gemm are calibrated for float32"),
    ({**TRITON, "kernel": "a_new_one"}, {},
     "no form of T(N) for the MoE kernel a_new_one of vllm"),
    ({**TRITON, "backend": "another"}, {}, "no form of T(N) for the MoE kernel ? of another"),
]  # fmt: skip


@pytest.mark.parametrize(("question", "facts", "why"), REFUSED)
def test_what_is_missing_is_named(
    question: dict[str, Any], facts: dict[str, Any], why: str
) -> None:
    """A question without a form, fact, constants or field is refused, and the refusal names it."""
    assert judged(question, **facts)[1] == why


@pytest.mark.parametrize(
    ("formats", "text"),
    [
        ({"dtype": "bfloat16"}, None),
        ({"dtype": "float16", "weights": "bfloat16"}, None),
        ({"dtype": "float8_block"}, "float8_block"),
        ({"dtype": "bfloat16", "weights": "int4"}, "bfloat16 with int4 weights"),
        ({"dtype": "bfloat16", "kv_dtype": "float8"}, "bfloat16 over a float8 cache"),
    ],
)
def test_constants_are_carried_to_other_formats(formats: dict[str, Any], text: str | None) -> None:
    """Constants fitted in 16 bits are used for other formats, and the answer names these."""
    facts = facts_of({**GEMM, **formats}).select(carried()).item()
    assert facts == (text and f"bfloat16's constants carried to {text}")


def test_a_call_without_a_cache_is_answered() -> None:
    """A form answers for context 0, which the paper's laws do not cover."""
    assert judged(PREFILL) == ("attention_prefill", None)


@pytest.mark.parametrize(
    ("changes", "family"),
    [
        ({"gpus": 16}, "collective_nccl"),
        ({"gpus": 8}, "collective_graph"),
        ({"gpus": 8, "dtype": "float16"}, "collective_nccl"),
        ({"gpus": 8, "backend_version": "0.14.0"}, "collective_nccl"),
        ({"gpus": 4, "backend_version": "0.14.0"}, "collective_graph"),
        ({"gpus": 8, "backend": "sglang", "backend_version": "0.5.14"}, "collective_nccl"),
        ({"gpus": 4, "backend": "sglang", "backend_version": "0.5.14"}, "collective_graph"),
        ({"gpus": 16, "kernel": "vLLM_custom_eager"}, "collective_eager"),
    ],
)
def test_an_engine_s_all_reduce_is_nccl_s_where_no_own_kernel_joins_so_many(
    changes: dict[str, Any], family: str
) -> None:
    """Beyond a GB300 machine's four GPUs, and beyond eight GPUs, engines use NCCL."""
    question = OF_FAMILY["collective_graph"] | {"platform": "gb300", "backend_version": "0.33.0"}
    assert judged(question | changes)[0] == family
