"""Ling 3: delta attention with gates per channel, and latents with a gate per head."""

from pathlib import Path
from typing import Any

import pytest
from nearfree.core.parallel import Parallel
from nearfree.decoders.attention_kinds import Latent
from nearfree.decoders.config_file import read_decoder
from nearfree.decoders.ranks.attention_uses import DELTA_GATES, DELTA_IN, DELTA_OUT, HEAD_GATES
from nearfree.decoders.ranks.caveats import caveats
from nearfree.decoders.state_kinds import DeltaNet
from nearfree.decoders.weights import stored
from nearfree.errors import RefusedError

from decoders.files import modules_by_role, parameters, read, write

KIND = "bailing_hybrid"
_FLASH = {
    "model_type": KIND, "torch_dtype": "bfloat16", "vocab_size": 157184, "hidden_size": 2560,
    "intermediate_size": 6144, "moe_intermediate_size": 768, "num_hidden_layers": 42,
    "num_attention_heads": 32, "num_key_value_heads": 32, "num_shared_experts": 1,
    "moe_shared_expert_intermediate_size": 768, "kv_lora_rank": 512, "q_lora_rank": None,
    "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "num_experts": 512,
    "num_experts_per_tok": 8, "first_k_dense_replace": 2, "head_dim": 128,
    "short_conv_kernel_size": 4, "layer_group_size": 6, "no_kda_lora": True, "kda_safe_gate": True,
    "gated_attention_proj_granularity_type": "head_wise", "num_nextn_predict_layers": 1,
}  # fmt: skip
"""Ling 3.0 flash, of 124 billion parameters, 5.1 billion of them active."""


def test_the_full_model_has_its_published_size(tmp_path: Path) -> None:
    """It has 124 billion parameters, and latents in the last of each six layers."""
    path = write(tmp_path, _FLASH)
    assert round(parameters(stored(path)) / 1e9) == 124
    kinds = {type(kind): kind for kind in read_decoder(path).attention}
    assert kinds[Latent].layers == tuple(range(5, 42, 6))
    assert len(kinds[DeltaNet].layers) == 35


def test_all_inputs_of_delta_attention_are_one_product(tmp_path: Path) -> None:
    """It makes queries, keys, values, rates, decays and gates of a rank's heads."""
    decoder = read(tmp_path, KIND)
    for tp in (1, 4):
        uses, heads = modules_by_role(decoder, parallel=Parallel(tp=tp)), 8 // tp
        assert uses[DELTA_IN].setting.d_ff == heads * (5 * 12 + 1)
        assert uses[DELTA_OUT].setting.d_model == heads * 12
        assert DELTA_GATES not in uses
        assert uses[HEAD_GATES].setting.d_ff == heads
        assert (uses[HEAD_GATES].count, uses[DELTA_IN].count) == (2, 4)
    assert any("SGLang: vLLM runs three" in text for text in caveats(decoder))


def test_a_list_of_layers_may_stand_beside_the_period(tmp_path: Path) -> None:
    """Both must say the same, because engines read the period alone."""
    types = ["linear_attention", "linear_attention", "full_attention"] * 2
    assert read(tmp_path, KIND, layer_types=types) == read(tmp_path, KIND)
    with pytest.raises(RefusedError, match="layer_group_size says"):
        read(tmp_path, KIND, layer_types=[*types[1:], "linear_attention"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"no_kda_lora": False}, "no_kda_lora False gives gates two products each"),
        ({"no_kda_lora": ...}, "no_kda_lora is missing. Give a file of Ling 3: Ling 2.5 has no"),
        ({"use_bias": True}, "use_bias True adds biases"),
        ({"multi_gate": True}, "multi_gate True gives a layer several routers"),
        ({"router_type": "MultiRouter"}, "router_type 'MultiRouter' gives a layer several"),
        ({"layer_group_size": 4}, "layer_group_size 4 does not divide 6 layers"),
        (
            {"gated_attention_proj_granularity_type": "element_wise"},
            "gated_attention_proj_granularity_type 'element_wise' is not head_wise",
        ),
    ],
)
def test_what_is_not_read_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    """Ling 2.5, several routers and other gates are refused by the key that says so."""
    with pytest.raises(RefusedError) as error:
        read(tmp_path, KIND, **changes)
    assert message in f"{error.value.what}. {error.value.remedy}"
