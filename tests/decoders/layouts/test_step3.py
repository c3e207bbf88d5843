"""Step 3: a latent of queries, and a Dense FFN beside its experts."""

from pathlib import Path
from typing import Any

import pytest
from nearfree.backends.names import BackendRelease
from nearfree.core.parallel import Parallel
from nearfree.decoders.config_file import read_decoder
from nearfree.decoders.model_file import read_model_file
from nearfree.decoders.ranks.attention_uses import OUTPUT, QKV, QUERY, role_of
from nearfree.decoders.ranks.caveats import caveats
from nearfree.decoders.ranks.collectives import FFN_SUM, MOE_SUM, collectives
from nearfree.decoders.ranks.modules import MOE, ROUTER, SHARED
from nearfree.decoders.weights import stored
from nearfree.errors import RefusedError

from decoders.files import change, modules_by_role, parameters, read, write

KIND = "step3_text"
_TEXT = {
    "model_type": KIND, "hidden_size": 7168, "intermediate_size": 18432, "num_attention_heads": 64,
    "num_attention_groups": 1, "num_hidden_layers": 61, "vocab_size": 128815,
    "moe_intermediate_size": 5120, "moe_num_experts": 48, "moe_top_k": 3, "share_expert_dim": 5120,
    "share_q_dim": 2048, "head_dim": 256, "torch_dtype": "bfloat16",
    "moe_layers_enum": ",".join(map(str, range(4, 60))),
}  # fmt: skip
PUBLISHED = 316e9
"""Parameters of its language part, of 321 billion with the vision tower."""


def test_the_full_model_has_its_published_size(tmp_path: Path) -> None:
    """The text part of the composite model has as many parameters as are published of it."""
    path = write(tmp_path, {"model_type": "step3_vl", "text_config": _TEXT, "vision_config": {}})
    assert parameters(stored(path)) == pytest.approx(PUBLISHED, rel=0.003)
    decoder = read_decoder(path)
    assert (decoder.kv_heads, decoder.moe_layers, decoder.dense_layers) == (1, 56, 61)
    assert decoder.dense_ffns == ((18432, 5), (5120, 56))


def test_queries_are_two_products(tmp_path: Path) -> None:
    """One makes the latent with key and value, whole on each rank; one makes a rank's queries."""
    decoder = read(tmp_path, KIND)
    for tp in (1, 4):
        uses = modules_by_role(decoder, parallel=Parallel(tp=tp))
        sizes = {
            role: (uses[role].setting.d_model, uses[role].setting.d_ff)
            for role in (QKV, QUERY, OUTPUT)
        }
        assert sizes == {
            QKV: (64, 24 + 2 * 16),
            QUERY: (24, 8 * 16 // tp),
            OUTPUT: (8 * 16 // tp, 64),
        }
        assert uses["attention"].setting.kv_heads == 1


def test_ranks_hold_the_latent_whole_and_cut_what_is_made_of_it(tmp_path: Path) -> None:
    """The product before the latent is replicated; other models' q_proj are cut by heads."""
    shares = {}
    for kind in (KIND, "llama"):
        model = read_model_file(write(tmp_path, change(kind)))
        shares[kind] = {
            weights.how: weights.elements // 6
            for weights in model.weights
            if weights.kind == "attention"
        }
    assert shares[KIND] == {"whole": 64 * 24, "keys": 2 * 64 * 16, "cut": 24 * 128 + 128 * 64}
    assert "whole" not in shares["llama"]


def test_layers_with_experts_have_a_dense_ffn_of_their_own_width(tmp_path: Path) -> None:
    """It is no shared expert: it runs before the experts, and vLLM sums it over ranks apart."""
    decoder = read(tmp_path, KIND)
    uses = modules_by_role(decoder)
    assert SHARED not in uses
    assert (uses[MOE].count, uses[ROUTER].count) == (4, 4)
    widths = {role: (use.count, use.setting.d_ff) for role, use in uses.items() if "wide" in role}
    assert sorted(widths.values()) == [(2, 96), (4, 40)]
    sums = {
        use.role: use.count
        for use in collectives(
            decoder, Parallel(tp=2), batch=1, engine=BackendRelease("vllm", "0.33.0")
        )
    }
    assert (sums[FFN_SUM], sums[MOE_SUM]) == (6, 4)
    assert any("SGLang has one for both" in text for text in caveats(decoder))


def test_a_file_may_list_no_layers_with_experts_or_all(tmp_path: Path) -> None:
    """The widths of its Dense FFNs are those of the layers that it has."""
    every = read(tmp_path, KIND, moe_layers_enum="0,1,2,3,4,5")
    assert every.dense_ffns == ((40, 6),)
    assert every.moe_layers == 6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_attention_groups": 2}, "num_attention_groups 2 is not 1"),
        ({"moe_layers_enum": ...}, "moe_layers_enum is missing"),
        ({"moe_layers_enum": "1,two"}, "moe_layers_enum '1,two' is no list of layers"),
        ({"share_q_dim": ...}, "share_q_dim is missing"),
    ],
)
def test_what_is_not_read_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    """Engines take one key head for granted, and a file lists the layers with experts."""
    with pytest.raises(RefusedError, match=message):
        read(tmp_path, KIND, **changes)


def test_a_format_of_the_second_product_is_that_of_queries() -> None:
    """By its name it is the product of queries, and q_proj is part of the first."""
    assert role_of("model.layers.*.self_attn.wq", latent=False) == QUERY
    assert role_of("model.layers.*.self_attn.q_proj", latent=False) == QKV
