"""Models that differ from a known one by norms, gates and names: counted, told apart, refused."""

from pathlib import Path
from typing import Any

import pytest
from nearfree.backends.names import BackendRelease
from nearfree.core.parallel import Parallel
from nearfree.decoders.attention_kinds import Grouped
from nearfree.decoders.config_file import read_decoder
from nearfree.decoders.decoder import Decoder
from nearfree.decoders.ranks.attention_uses import HEAD_GATES, OUTPUT_GATE, QKV
from nearfree.decoders.ranks.modules import ModuleUse, modules
from nearfree.decoders.weights import stored
from nearfree.errors import RefusedError

from decoders.files import change, parameters, read, write

FULL = "full_attention"


def modules_by_role(decoder: Decoder, **changes: Any) -> dict[str, ModuleUse]:
    """Return the modules of a forward by their role, those of several kinds by the first."""
    uses = modules(
        decoder, batch=1, context=16, moe=BackendRelease("vllm", "0.33.0"), routing="balanced",
        attention=BackendRelease("flash_attn", "2.8.3"), **changes,
    )  # fmt: skip
    return {use.role: use for use in reversed(uses)}


@pytest.mark.parametrize(
    ("kind", "changes", "full"),
    [
        ("muse_glimmer_text", {}, (1, 5)),
        ("muse_glimmer_text", {"num_hidden_layers": 5}, (0, 4)),
        ("muse_glimmer_text", {"layer_types": [FULL, *["sliding_attention"] * 5]}, (0,)),
        ("spark2_5", {}, (3,)),
        ("kolibri1", {}, (4,)),
        ("beam", {}, (5,)),
        ("vaultgemma", {}, (1, 3, 5)),
        ("beam", {"num_hidden_layers": 8, "mlp_layer_types": ...}, (5, 7)),
    ],
)
def test_layers_with_a_window_are_counted_as_their_class_does(
    tmp_path: Path, kind: str, changes: dict[str, Any], full: tuple[int, ...]
) -> None:
    """Where a file says no kinds of layers the rule of its class holds; others have a window."""
    decoder = read(tmp_path, kind, **changes)
    layers_by_window = {
        kind_.window: kind_.layers for kind_ in decoder.attention if isinstance(kind_, Grouped)
    }
    assert layers_by_window[None] == full
    assert layers_by_window[32] == tuple(
        layer for layer in range(decoder.layers) if layer not in full
    )


def test_a_gate_is_a_product_of_its_own_or_one_with_queries(tmp_path: Path) -> None:
    """Beam's enters the product of queries; Muse Glimmer's is as wide apart, Spark's has heads."""
    widths = {
        kind: {
            role: use.setting.d_ff
            for role, use in modules_by_role(read(tmp_path, kind)).items()
            if role in (QKV, HEAD_GATES, OUTPUT_GATE)
        }
        for kind in ("beam", "muse_glimmer_text", "spark2_5")
    }
    qkv_width = (8 + 2 * 2) * 16
    assert widths == {
        "beam": {QKV: qkv_width + 8 * 16},
        "muse_glimmer_text": {QKV: qkv_width, OUTPUT_GATE: 8 * 16},
        "spark2_5": {QKV: qkv_width, HEAD_GATES: 8},
    }
    uses_without_gate = modules_by_role(read(tmp_path, "spark2_5", headwise_attn_output_gate=False))
    assert HEAD_GATES not in uses_without_gate


def test_beam_has_experts_behind_its_first_layers(tmp_path: Path) -> None:
    """A list says which layers have them; without it all but the first three have."""
    assert read(tmp_path, "beam").moe_layers == 4
    assert read(tmp_path, "beam", mlp_layer_types=...).moe_layers == 3


@pytest.mark.parametrize(
    ("kind", "sizes", "published"),
    [
        (
            "iquestcoder",
            {"vocab_size": 76800, "hidden_size": 5120, "intermediate_size": 27648,
             "num_hidden_layers": 80, "num_attention_heads": 40, "num_key_value_heads": 8,
             "head_dim": 128},
            39.8e9,
        ),
        (
            "internlm3",
            {"vocab_size": 128512, "hidden_size": 4096, "intermediate_size": 10240,
             "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 2,
             "head_dim": 128},
            8.8e9,
        ),
        (
            "exaone",
            {"vocab_size": 102400, "hidden_size": 4096, "intermediate_size": 14336,
             "num_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
             "tie_word_embeddings": False},
            7_818_448_896,
        ),
        (
            "exaone",
            {"vocab_size": 102400, "hidden_size": 2560, "intermediate_size": 7168,
             "num_layers": 30, "num_attention_heads": 32, "num_key_value_heads": 8,
             "head_dim": 80, "tie_word_embeddings": True},
            2_405_327_360,
        ),
        (
            "internlm2",
            {"vocab_size": 92544, "hidden_size": 4096, "intermediate_size": 14336,
             "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
             "bias": False, "tie_word_embeddings": False},
            7_737_708_544,
        ),
        (
            "minicpm",
            {"vocab_size": 122753, "hidden_size": 2304, "intermediate_size": 5760,
             "num_hidden_layers": 40, "num_attention_heads": 36, "num_key_value_heads": 36},
            2_724_880_896,
        ),
        (
            "stablelm",
            {"vocab_size": 100352, "hidden_size": 2048, "intermediate_size": 5632,
             "num_hidden_layers": 24, "num_attention_heads": 32, "num_key_value_heads": 32,
             "use_qkv_bias": True},
            1_644_515_328,
        ),
        (
            "vaultgemma",
            {"vocab_size": 256000, "hidden_size": 1152, "intermediate_size": 6912,
             "num_hidden_layers": 26, "num_attention_heads": 4, "num_key_value_heads": 4,
             "head_dim": 256, "sliding_window": 512},
            1_038_741_120,
        ),
        (
            "youtu",
            {"vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 6144,
             "num_hidden_layers": 32, "num_attention_heads": 16, "kv_lora_rank": 512,
             "q_lora_rank": 1536, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
             "v_head_dim": 128},
            1.96e9,
        ),
        (
            "jais2",
            {"vocab_size": 150272, "hidden_size": 3328, "intermediate_size": 26624,
             "num_hidden_layers": 32, "num_attention_heads": 26, "num_key_value_heads": 26},
            8.09e9,
        ),
        (
            "phi",
            {"vocab_size": 51200, "hidden_size": 2560, "intermediate_size": 10240,
             "num_hidden_layers": 32, "num_attention_heads": 32, "qk_layernorm": False},
            2_779_683_840,
        ),
        (
            "gpt_neox",
            {"vocab_size": 50688, "hidden_size": 5120, "intermediate_size": 20480,
             "num_hidden_layers": 36, "num_attention_heads": 40},
            11_846_072_320,
        ),
        (
            "deepseek",
            {"vocab_size": 102400, "hidden_size": 2048, "intermediate_size": 10944,
             "moe_intermediate_size": 1408, "num_hidden_layers": 28, "num_attention_heads": 16,
             "num_key_value_heads": 16, "n_shared_experts": 2, "n_routed_experts": 64,
             "num_experts_per_tok": 6, "moe_layer_freq": 1, "first_k_dense_replace": 1},
            16_375_728_128,
        ),
        (
            "AXK1",
            {"vocab_size": 163840, "hidden_size": 7168, "intermediate_size": 18432,
             "moe_intermediate_size": 2048, "num_hidden_layers": 61, "num_attention_heads": 64,
             "n_shared_experts": 1, "n_routed_experts": 192, "kv_lora_rank": 512,
             "q_lora_rank": 1536, "qk_rope_head_dim": 64, "v_head_dim": 128,
             "qk_nope_head_dim": 128, "num_experts_per_tok": 8, "first_k_dense_replace": 1},
            519e9,
        ),
        (
            "lfm2",
            {"vocab_size": 65536, "hidden_size": 2048, "block_ff_dim": 12288,
             "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
             "conv_L_cache": 3, "full_attn_idxs": [2, 5, 8, 10, 12, 14]},
            1_170_340_608,
        ),
    ],
)  # fmt: skip
def test_sizes_are_the_published_ones(
    tmp_path: Path, kind: str, sizes: dict[str, Any], published: float
) -> None:
    """A full-sized file has as many parameters as its model says, to the digits that it says."""
    path = write(tmp_path, {"model_type": kind, "torch_dtype": "bfloat16", **sizes})
    assert parameters(stored(path)) == pytest.approx(published, rel=0.003)
    assert read_decoder(path).d_model == sizes["hidden_size"]


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("iquestcoder", {"clip_qkv": 8.0}, "clip_qkv 8.0 clips queries"),
        ("iquestcoder", {"use_sliding_window": True}, "use_sliding_window True is not"),
        ("internlm3", {"qkv_bias": True}, "qkv_bias True is not bias"),
        ("internlm2", {"bias": True}, "bias True adds biases to attention"),
        ("minicpm", {"num_experts": 8}, "num_experts 8 gives layers experts"),
        ("stablelm", {"use_parallel_residual": True}, "use_parallel_residual True is set"),
        ("stablelm", {"qk_layernorm": True}, "qk_layernorm True is set"),
        ("PanguEmbedded", {"n_routed_experts": 8}, "n_routed_experts 8 gives layers experts"),
        ("PanguEmbedded", {"param_sink_number": 128}, "param_sink_number 128 adds learned keys"),
        ("PanguEmbedded", {"sandwich_norm": True}, "sandwich_norm True adds norms"),
        ("PanguEmbedded", {"interleaved_sliding_window": 512}, "interleaved_sliding_window 512"),
        ("PanguEmbedded", {"qkv_bias": True}, "qkv_bias True is not bias"),
        ("PanguEmbedded", {"is_causal": False}, "is_causal False makes it an encoder"),
        ("phi", {"qk_layernorm": True}, "qk_layernorm True normalises queries and keys"),
    ],
)
def test_what_a_class_does_not_run_is_refused(
    tmp_path: Path, kind: str, changes: dict[str, Any], message: str
) -> None:
    """A key that its class refuses is refused by its name."""
    with pytest.raises(RefusedError, match=message):
        read(tmp_path, kind, **changes)


@pytest.mark.parametrize(
    ("kind", "sizes", "billions", "counted"),
    [
        (
            "solar",
            {"vocab_size": 32128, "hidden_size": 5120, "intermediate_size": 17920,
             "num_hidden_layers": 64, "num_attention_heads": 40, "num_key_value_heads": 10,
             "sliding_window": 2047, "bskcn_1": [12, 20, 32, 44], "bskcn_2": [20, 32],
             "bskcn_3": [16, 24, 36, 48], "bskcn_4": [28, 40], "bskcn_tv": [0.9, 0.8]},
            22, "all",
        ),
        (
            "telechat3",
            {"vocab_size": 131072, "hidden_size": 6144, "intermediate_size": 24576,
             "num_hidden_layers": 64, "num_attention_heads": 48, "num_key_value_heads": 8,
             "head_dim": 128},
            36, "all",
        ),
        (
            "PanguEmbedded",
            {"vocab_size": 153376, "hidden_size": 4096, "intermediate_size": 12800, "bias": True,
             "num_hidden_layers": 34, "num_attention_heads": 32, "num_key_value_heads": 8},
            7, "layers",
        ),
        (
            "sarvam_moe",
            {"vocab_size": 262144, "hidden_size": 4096, "intermediate_size": 8192,
             "moe_intermediate_size": 1024, "num_hidden_layers": 19, "num_attention_heads": 64,
             "num_key_value_heads": 4, "head_dim": 64, "num_experts": 128, "num_shared_experts": 1,
             "num_experts_per_tok": 6, "first_k_dense_replace": 1, "use_qk_norm": True},
            30, "layers",
        ),
        (
            "kolibri1",
            {"vocab_size": 128000, "hidden_size": 2560, "num_hidden_layers": 50,
             "num_attention_heads": 48, "num_key_value_heads": 4, "head_dim": 128,
             "sliding_window": 513, "moe_intermediate_size": 512, "num_experts": 384,
             "num_experts_per_tok": 6, "shared_expert_intermediate_size": 512},
            78, "all",
        ),
        (
            "sdar_moe",
            {"vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144,
             "moe_intermediate_size": 768, "num_hidden_layers": 48, "num_attention_heads": 32,
             "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128,
             "num_experts_per_tok": 8, "decoder_sparse_step": 1, "mlp_only_layers": []},
            31, "all",
        ),
        (
            "sarvam_mla",
            {"vocab_size": 262144, "hidden_size": 4096, "intermediate_size": 16384,
             "moe_intermediate_size": 2048, "num_hidden_layers": 32, "num_attention_heads": 64,
             "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
             "v_head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8,
             "num_shared_experts": 1, "first_k_dense_replace": 1},
            106, "all",
        ),
    ],
)  # fmt: skip
def test_sizes_are_the_billions_that_are_published(
    tmp_path: Path, kind: str, sizes: dict[str, Any], billions: int, counted: str
) -> None:
    """A full-sized file has the billions that its model says, of all weights or of the layers."""
    path = write(tmp_path, {"model_type": kind, "torch_dtype": "bfloat16", **sizes})
    weights = [
        weight
        for weight in stored(path).weights
        if counted == "all" or weight.kind not in ("embedding", "lm_head")
    ]
    assert round(sum(weight.elements for weight in weights) / 1e9) == billions
    assert read_decoder(path).window == (513 if kind == "kolibri1" else None)


_OCR = {
    "model_type": "deepseek_v2", "hidden_size": 1280, "intermediate_size": 6848,
    "num_hidden_layers": 12, "num_attention_heads": 10, "num_key_value_heads": 10,
    "kv_lora_rank": None, "q_lora_rank": None, "qk_nope_head_dim": 0, "qk_rope_head_dim": 0,
    "v_head_dim": 0, "use_mla": False, "n_routed_experts": 64, "n_shared_experts": 2,
    "moe_intermediate_size": 896, "num_experts_per_tok": 6, "first_k_dense_replace": 1,
    "vocab_size": 129280, "torch_dtype": "bfloat16",
}  # fmt: skip
"""The text part of DeepSeek-OCR, of about 3 billion parameters."""


def test_a_deepseek_of_the_second_type_without_latents_is_read_as_the_first(
    tmp_path: Path,
) -> None:
    """DeepSeek-OCR's file says the type of V2, and by two sizes of 0 that it has no latents."""
    path = write(
        tmp_path, {"model_type": "deepseek_vl_v2", "language_config": _OCR, "vision_config": {}}
    )
    decoder = read_decoder(path)
    assert (decoder.model_type, decoder.heads, decoder.kv_heads) == ("deepseek", 10, 10)
    assert round(parameters(stored(path)) / 1e9) == 3
    latent = {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
    document = {**_OCR, **latent, "kv_lora_rank": 512}
    with pytest.raises(RefusedError, match="use_mla False contradicts the sizes of latents"):
        read_decoder(write(tmp_path, document))
    document["use_mla"] = True
    assert read_decoder(write(tmp_path, document)).model_type == "deepseek_v2"


@pytest.mark.parametrize(
    ("outer", "version", "kind"),
    [
        ("minicpmv", 2.6, "qwen2"),
        ("minicpmv", "4.0", "llama"),
        ("minicpmv", 4.5, "qwen3"),
        ("minicpmo", "4.5", "qwen3"),
    ],
)
def test_a_version_says_which_text_a_minicpm_has(
    tmp_path: Path, outer: str, version: float | str, kind: str
) -> None:
    """MiniCPM-V and -o have the keys of their text among their own; no other version is read."""
    document = change(kind, model_type=outer, version=version, vision_config={})
    assert read_decoder(write(tmp_path, document)) == read(tmp_path, kind)
    for changes, message in (
        ({"version": 9.9}, "version 9.9 is not read"),
        ({"version": None}, "version is missing"),
    ):
        with pytest.raises(RefusedError, match=message):
            read_decoder(write(tmp_path, document | changes))


def test_the_text_of_phi_4_multimodal_is_phi_3(tmp_path: Path) -> None:
    """Its published file has the keys of Phi-3 among its own, and 3.8 billion parameters."""
    document = {
        "model_type": "phi4mm", "torch_dtype": "bfloat16", "hidden_size": 3072,
        "intermediate_size": 8192, "num_hidden_layers": 32, "num_attention_heads": 24,
        "num_key_value_heads": 8, "vocab_size": 200064, "sliding_window": 262144,
        "tie_word_embeddings": True, "partial_rotary_factor": 0.75, "vision_lora": {"r": 256},
    }  # fmt: skip
    path = write(tmp_path, document)
    assert parameters(stored(path)) == 3_836_021_760
    assert read_decoder(path).model_type == "phi3"


def test_a_composite_without_its_text_is_refused(tmp_path: Path) -> None:
    """A file of a model of several parts without the part that decodes is refused by its type."""
    with pytest.raises(RefusedError, match="model_type 'internvl_chat' has no part here"):
        read_decoder(write(tmp_path, change("llama", model_type="internvl_chat")))


@pytest.mark.parametrize("outer", ["interns1", "intern_s2_preview"])
def test_the_text_of_interns_is_one_of_qwen_s(tmp_path: Path, outer: str) -> None:
    """Its file says which; only what its class takes by default is added."""
    kind = "qwen3_moe" if outer == "interns1" else "qwen3_5_moe_text"
    document = {"model_type": outer, "text_config": change(kind), "vision_config": {}}
    decoder = read_decoder(write(tmp_path, document))
    assert decoder == read(tmp_path, kind)


def test_a_fused_matrix_is_parted_by_heads_of_keys(tmp_path: Path) -> None:
    """A rank of four has one of the two heads of keys, as its product has."""
    decoder = read(tmp_path, "spark2_5")
    assert modules_by_role(decoder, parallel=Parallel(tp=4))[QKV].setting.d_ff == (2 + 2) * 16


def test_the_text_of_hunyuan_vl_calls_the_width_of_a_head_otherwise(tmp_path: Path) -> None:
    """It is that of Hunyuan's dense models, whose embedding is its LM head."""
    document = change("hunyuan_v1_dense", model_type="hunyuan_vl_text", attention_head_dim=24)
    path = write(tmp_path, document)
    assert (read_decoder(path).model_type, read_decoder(path).head_dim) == ("hunyuan_v1_dense", 24)
    assert not [weight for weight in stored(path).weights if weight.kind == "lm_head"]
