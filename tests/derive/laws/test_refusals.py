"""Every refusal of the laws names the field, fact or rule that is missing."""

from typing import Any

import polars as pl
import pytest
from nearfree.derive.laws.laws import LAWS, answer_laws

from derive.questions import ATTENTION, DENSE, FACTS, MOE, RESOLVER, answers, ask

EVERY = set(LAWS)
REFUSED: list[tuple[dict[str, Any], set[str], str]] = [
    ({"module": "model", "backend": "any"}, EVERY, "no law for the module model yet"),
    (MOE | {"routing": "power_law"}, EVERY, "no law for power_law routing"),
    (ATTENTION | {"context": 0}, EVERY, "attention without a cache"),
    (MOE | {"d_ff": None}, EVERY, "the moe_ffn setting lacks d_ff"),
    (ATTENTION | {"kv_heads": None}, EVERY, "the attention setting lacks kv_heads"),
    (DENSE | {"platform": "mars"}, EVERY, "no facts of mars"),
    (DENSE | {"platform": "a100", "dtype": "float8"}, EVERY, "no phi of a100 for float8"),
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
    (ATTENTION | {"platform": "mars"}, {"principle_resolved"}, "number of SMs"),
]


@pytest.mark.parametrize(("question", "laws", "missing"), REFUSED)
def test_what_is_missing_is_named(question: dict[str, Any], laws: set[str], missing: str) -> None:
    """A law without its rule or fact says which, and says nothing else."""
    found = answers(question)[0]
    for law in laws:
        assert missing in found[law]["refusal"]
        kept = {name for name, value in found[law].items() if value is not None}
        assert kept == {"asked", "predictor", "epsilon", "refusal"}


def test_a_platform_without_bandwidth_is_named() -> None:
    """Of the two facts behind rho the one that is missing is named."""
    facts = FACTS.with_columns(
        pl.lit(None, pl.Float64).alias("bandwidth_gb_s"),
        pl.lit(None, pl.Float64).alias("balance_flop_per_byte"),
    )
    found = answer_laws(ask(DENSE), facts, [0.2], RESOLVER)
    assert set(found["refusal"]) == {"no beta of h20"}
