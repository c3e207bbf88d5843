"""LongCat-Flash: two attentions and two Dense FFNs a layer, and experts of which some are idle."""

from pathlib import Path
from typing import Any

import pytest
from nearfree.backends.names import BackendRelease
from nearfree.core.parallel import Parallel
from nearfree.decoders.config_file import read_decoder
from nearfree.decoders.ranks.attention_uses import LATENT, OUTPUT
from nearfree.decoders.ranks.caveats import caveats
from nearfree.decoders.ranks.collectives import ATTENTION_SUM, FFN_SUM, MOE_SUM, collectives
from nearfree.decoders.ranks.modules import DENSE, MOE, ROUTER
from nearfree.decoders.weights import stored
from nearfree.errors import RefusedError

from decoders.files import change, modules_by_role, parameters, read, write

KIND = "longcat_flash"
_FLASH = {
    "model_type": KIND, "torch_dtype": "bfloat16", "vocab_size": 131072, "hidden_size": 6144,
    "num_layers": 28, "num_attention_heads": 64, "ffn_hidden_size": 12288,
    "expert_ffn_hidden_size": 2048, "n_routed_experts": 512, "moe_topk": 12,
    "zero_expert_num": 256, "zero_expert_type": "identity", "kv_lora_rank": 512,
    "q_lora_rank": 1536, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
}  # fmt: skip
"""LongCat-Flash, of 560 billion parameters, of which 27 billion are active on average."""


def test_the_full_model_has_its_published_sizes(tmp_path: Path) -> None:
    """It has its parameters, and on average as many active ones as its authors tell."""
    path = write(tmp_path, _FLASH)
    total = parameters(stored(path))
    assert total == pytest.approx(560e9, rel=0.003)
    experts = read_decoder(path).experts
    assert experts is not None
    assert (experts.experts, experts.top_k, experts.idle) == (512, 8, 256)
    unused = 28 * (512 - experts.top_k) * 3 * 6144 * 2048 + 131072 * 6144  # and the embedding
    assert round((total - unused) / 1e9) == 27


def test_attention_and_dense_ffn_run_twice_a_layer(tmp_path: Path) -> None:
    """All their products count twice, as do their all-reduces; the experts run once."""
    decoder = read(tmp_path, KIND)
    uses = modules_by_role(decoder)
    counts = {role: uses[role].count for role in (LATENT, OUTPUT, DENSE, MOE, ROUTER)}
    assert counts == {LATENT: 12, OUTPUT: 12, DENSE: 12, MOE: 6, ROUTER: 6}
    assert (uses[ROUTER].setting.d_ff, uses[MOE].setting.top_k) == (16 + 8, 4)
    assert decoder.pairs == (12 + 12 + 6) / 2
    sums = {
        use.role: use.count
        for use in collectives(
            decoder, Parallel(tp=2), batch=1, engine=BackendRelease("vllm", "0.33.0")
        )
    }
    assert (sums[ATTENTION_SUM], sums[FFN_SUM], sums[MOE_SUM]) == (12, 12, 6)
    (cache,) = stored(write(tmp_path, change(KIND))).cache
    assert (cache.layers, cache.elements) == (12, 12 + 4)
    assert any("8 idle experts as often as others" in text for text in caveats(decoder))


def test_without_idle_experts_all_that_are_chosen_compute(tmp_path: Path) -> None:
    """Then nothing is taken of how often positions choose idle ones."""
    decoder = read(tmp_path, KIND, zero_expert_num=0)
    assert decoder.experts is not None
    assert decoder.experts.top_k == 6
    assert not any("idle" in text for text in caveats(decoder))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"zero_expert_num": 4}, "zero_expert_num 4 leaves a position 4.8 of 6 experts"),
        ({"index_topk": 2048}, "index_topk 2048 selects what layers attend to"),
        ({"ngram_vocab_size_ratio": 78}, "ngram_vocab_size_ratio 78 adds tables"),
        ({"oe_neighbor_num": 4}, "oe_neighbor_num 4 adds tables and products of n-grams"),
        ({"attention_method": "MHA"}, "attention_method 'MHA' is not MLA"),
        ({"zero_expert_num": ...}, "zero_expert_num is missing"),
        ({"moe_topk": 17}, "moe_topk 17 is larger than n_routed_experts 16"),
    ],
)
def test_what_is_not_read_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    """A position has a whole number of experts on average, or the file is refused."""
    with pytest.raises(RefusedError, match=message):
        read(tmp_path, KIND, **changes)
