"""What models store: as many elements as in transformers' own classes, by name and kind."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from nearfree.decoders.config_file import read_decoder
from nearfree.decoders.layouts.by_type import LAYOUTS
from nearfree.decoders.layouts.families import FAMILIES
from nearfree.decoders.weights import stored
from nearfree.errors import RefusedError
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
)

from decoders.files import CONFIG, DEFAULTED, VALUES, change, parameters, refusal, write
from decoders.stored_files import NO_CLASS, STORED


def class_parameters(folder: Path, document: dict[str, Any]) -> int:
    """Return the parameters of transformers' model, which takes no memory."""
    write(folder, {**document, "pad_token_id": 0}, "config.json")
    config = AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        try:
            model = AutoModelForCausalLM.from_config(config)
        except ValueError:  # a text part that has no class of its own with an LM head
            model = AutoModel.from_config(config)
            return sum(parameter.numel() for parameter in model.parameters()) + (
                0 if config.tie_word_embeddings else config.vocab_size * config.hidden_size
            )
    return sum(parameter.numel() for parameter in model.parameters())


def idle_parameters(document: dict[str, Any]) -> int:
    """Return what transformers makes of LongCat's idle experts, which compute and store nothing."""
    layer = 2 * document.get("hidden_size", 0) * document.get("expert_ffn_hidden_size", 0)
    return document.get("num_layers", 0) * document.get("zero_expert_num", 0) * layer


@pytest.mark.parametrize("name", STORED)
def test_as_many_parameters_as_the_class_has(tmp_path: Path, name: str) -> None:
    """What is read of a file has the elements of the model that transformers makes of it."""
    document = {"model_type": name, **STORED[name]}
    made = class_parameters(tmp_path, document) - idle_parameters(document)
    assert parameters(stored(write(tmp_path, document))) == made


def test_every_model_type_is_compared() -> None:
    """No model type is without a small file of a class, or a published count of its parameters."""
    compared = {document.get("model_type", name) for name, document in STORED.items()}
    aliases = {
        "deepseek_ref", "kimi_k2", "qwen2_5_vl_text", "qwen2_vl_text", "qwen3_vl_text",
        "qwen3_vl_moe_text", "step3p5",
    }  # fmt: skip
    assert compared | aliases | NO_CLASS == set(LAYOUTS)


_LLADA = {
    "model_type": "llada", "d_model": 4096, "n_heads": 32, "n_kv_heads": 32, "n_layers": 32,
    "mlp_hidden_size": 12288, "vocab_size": 126464, "embedding_size": 126464,
    "weight_tying": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("document", "published"),
    [
        (_LLADA, 8_015_581_184),
        (CONFIG / "models" / "llada_2_1_mini.json", 16_255_643_392 - 19 * 256),
        (CONFIG / "models" / "ling_2_0_mini.json", 16_255_643_392 - 19 * 256),
        (CONFIG / "models" / "wedlm_8b.json", 8_190_735_360),
        (CONFIG / "models" / "qwen3_8b.json", 8_190_735_360),
        (CONFIG / "models" / "llama_3_1_8b.json", 8_030_261_248),
        (CONFIG / "models" / "llama_3_2_1b.json", 1_235_814_400),
        (CONFIG / "models" / "mixtral_8x7b.json", 46_702_792_704),
    ],
    ids=["llada", "llada2", "ling2", "wedlm", "qwen3", "llama", "llama_1b", "mixtral"],
)
def test_as_many_parameters_as_published(
    tmp_path: Path, document: dict[str, Any] | Path, published: int
) -> None:
    """Models whose class is not in transformers have the count that their checkpoint has.

    The checkpoints of Ling 2.0 and LLaDA 2 hold a buffer of 256 biases in each of 19 layers too.
    """
    path = document if isinstance(document, Path) else write(tmp_path, document)
    assert parameters(stored(path)) == published


def cache_entries(folder: Path, name: str, **changes: Any) -> set[tuple[int, int, int | None, int]]:
    """Return what the layers of a small file keep."""
    cache = stored(write(folder, {"model_type": name, **STORED[name], **changes})).cache
    return {(entry.layers, entry.elements, entry.window, entry.state_elements) for entry in cache}


@pytest.mark.parametrize(
    ("name", "cache"),
    [
        ("llama", {(6, 2 * 2 * 8, None, 0)}),
        ("gpt_oss", {(3, 2 * 2 * 16, 32, 0), (3, 2 * 2 * 16, None, 0)}),
        ("gemma3_text", {(5, 2 * 2 * 16, 32, 0), (1, 2 * 2 * 16, None, 0)}),
        ("gemma4_text", {(3, 2 * 2 * 16, 32, 0), (3, 2 * 32, None, 0)}),
        ("llama4_text", {(5, 2 * 2 * 16, 8192, 0), (1, 2 * 2 * 16, None, 0)}),
        ("mimo_v2_flash", {(2, 2 * (16 + 12), None, 0), (4, 4 * (16 + 12), 32, 0)}),
        ("deepseek_v3", {(6, 12 + 4, None, 0)}),
        ("deepseek_v32", {(6, 12 + 4, None, 0), (6, 14, None, 0)}),
        ("glm_moe_dsa", {(6, 12 + 4, None, 0), (3, 14, None, 0)}),
        ("kimi_linear", {(2, 12 + 4, None, 0), (4, 0, None, 4 * 6 * 6 + 3 * 4 * 6 * 3)}),
        (
            "deepseek_v4",
            {
                (6, 128, 32, 0),
                (2, 128 // 4, None, 0),
                (2, 16 // 4, None, 0),
                (2, 1, None, 0),
                (2, 0, None, 2 * 8 * 2 * 128),
                (2, 0, None, 2 * 8 * 2 * 16),
                (2, 0, None, 2 * 128 * 128),
            },
        ),
        ("minimax_m3_vl_text", {(6, 2 * 2 * 16, None, 0), (5, 12, None, 0)}),
        (
            "qwen3_5_text",
            {(2, 2 * 2 * 16, None, 0), (4, 0, None, 4 * 6 * 10 + (2 * 2 * 6 + 40) * 2)},
        ),
        ("jamba", {(1, 2 * 2 * 8, None, 0), (7, 0, None, 128 * (16 + 3))}),
        ("falcon_h1", {(6, 2 * 2 * 16, None, 0), (6, 0, None, 48 * 10 + (48 + 40) * 3)}),
        ("nemotron_h", {(1, 2 * 2 * 16, None, 0), (2, 0, None, 24 * 10 + (24 + 40) * 2)}),
    ],
)
def test_what_layers_keep(tmp_path: Path, name: str, cache: set[Any]) -> None:
    """Each kind of attention keeps what its class caches of a position and of a request."""
    assert cache_entries(tmp_path, name) == cache


@pytest.mark.parametrize(
    "kind", [kind for kind, family in FAMILIES.items() if family.says_head_dim]
)
def test_a_head_s_width_is_not_guessed(tmp_path: Path, kind: str) -> None:
    """Where it does not follow from d_model, a file without it has no memory, as it has no T(N)."""
    path = write(tmp_path, change(kind, head_dim=...))
    if (kind, "head_dim") in DEFAULTED:
        assert stored(path).cache
        return
    with pytest.raises(RefusedError) as error:
        stored(path)
    assert [str(reason) for reason in error.value.refusals] == ["head_dim is missing"]


@pytest.mark.parametrize("kind", ["mistral", "qwen2", "glm4_moe", "gpt_oss"])
def test_heads_of_keys_are_not_guessed(tmp_path: Path, kind: str) -> None:
    """Where the class has a number of its own, a file that says none has no memory."""
    with pytest.raises(RefusedError, match="num_key_value_heads is missing"):
        stored(write(tmp_path, change(kind, num_key_value_heads=...)))


def test_a_shared_cache_is_kept_once(tmp_path: Path) -> None:
    """Gemma 4's last layers keep nothing where they share what layers before them have cached."""
    options = {"attention_k_eq_v": False, "enable_moe_block": False}
    entries = cache_entries(tmp_path, "gemma4_text", num_kv_shared_layers=2, **options)
    assert entries == {(2, 2 * 2 * 16, 32, 0), (2, 2 * 2 * 32, None, 0)}


def test_layers_that_share_a_cache_may_have_ffns_twice_as_wide(tmp_path: Path) -> None:
    """Gemma 4 E2B's do, and no others: without such layers the flag changes nothing."""
    options = {"use_double_wide_mlp": True, "attention_k_eq_v": False, "enable_moe_block": False}
    document = {
        "model_type": "gemma4_text",
        "dtype": "bfloat16",
        **STORED["gemma4_text"],
        **options,
    }
    for sharing in (0, 2):
        path = write(tmp_path, {**document, "num_kv_shared_layers": sharing})
        decoder, weights = read_decoder(path), stored(path).weights
        ups = {
            (weight.outputs, weight.layers)
            for weight in weights
            if weight.name.endswith(".up_proj")
        }
        assert decoder.dense_ffns == (((192, 2), (96, 4)) if sharing else ((96, 6),))
        shared = {(192, (4, 5)), (96, (0, 1, 2, 3))}
        assert ups == (shared if sharing else {(96, tuple(range(6)))})
    path = write(tmp_path, {**document, "num_kv_shared_layers": 2, "enable_moe_block": True})
    for read_file in (read_decoder, stored):
        with pytest.raises(RefusedError, match="use_double_wide_mlp True is not read beside"):
            read_file(path)


def test_weights_have_the_names_of_the_checkpoint(tmp_path: Path) -> None:
    """A layer and an expert are a star; layers of one kind alone are named by number."""
    by_name = {weight.name: weight for weight in stored(write(tmp_path, change("mixtral"))).weights}
    experts = by_name["model.layers.*.block_sparse_moe.experts.*.w2"]
    assert (experts.kind, experts.inputs, experts.outputs, experts.count) == ("experts", 96, 64, 24)
    nemotron = {"model_type": "nemotron_h", **STORED["nemotron_h"]}
    by_name = {weight.name: weight for weight in stored(write(tmp_path, nemotron)).weights}
    assert by_name["backbone.layers.*.mixer.in_proj"].layers == (0, 4)
    assert by_name["backbone.layers.*.mixer.q_proj"].layers == (3,)
    assert by_name["lm_head"].kind == "lm_head"


MODELS_OF_PARTS = [
    ("qwen3_vl", "qwen3", "model.language_model", "lm_head"),
    ("mistral3", "ministral3", "language_model.model", "language_model.lm_head"),
    ("gemma3", "gemma3_text", "language_model.model", "language_model.lm_head"),
    ("kimi_k25", "deepseek_v3", "language_model.model", "language_model.lm_head"),
    ("kimi_vl", "deepseek_v3", "language_model.model", "language_model.lm_head"),
    ("internvl", "qwen3", "model.language_model", "lm_head"),
]


@pytest.mark.parametrize(("outer_type", "part", "root", "head"), MODELS_OF_PARTS)
def test_the_text_of_a_model_of_several_parts(
    tmp_path: Path, outer_type: str, part: str, root: str, head: str
) -> None:
    """It stores what its text alone does, under names of its own; what sees is said to be left out.

    Whether the LM head is the embedding is said outside of its text.
    """
    text = {"model_type": part, **STORED[part], "tie_word_embeddings": False}
    outer = {"model_type": outer_type, "text_config": text, "vision_config": {"depth": 2}}
    text_alone = stored(write(tmp_path, text))
    stored_parts = stored(write(tmp_path, {**outer, "tie_word_embeddings": False}))
    assert stored_parts.cache == text_alone.cache
    assert [weight.name for weight in stored_parts.weights] == [
        weight.name.replace("model", root, 1).replace("lm_head", head)
        for weight in text_alone.weights
    ]
    assert [note.partition(":")[0] for note in stored_parts.notes] == ["vision_config"]
    tied = stored(write(tmp_path, {**outer, "tie_word_embeddings": True}))
    assert parameters(stored_parts) - parameters(tied) == 500 * 64


@pytest.mark.parametrize("outer_type", ["mistral3", "kimi_k25"])
def test_a_head_that_classes_differ_on_is_counted(tmp_path: Path, outer_type: str) -> None:
    """Where nothing says that the LM head is the embedding, memory is not too small: it is said."""
    part = {"mistral3": "ministral3", "kimi_k25": "deepseek_v3"}[outer_type]
    text = {"model_type": part, **STORED[part]}
    stored_parts = stored(write(tmp_path, {"model_type": outer_type, "text_config": text}))
    assert parameters(stored_parts) == parameters(stored(write(tmp_path, text)))
    assert [note.partition(" ")[0] for note in stored_parts.notes] == ["tie_word_embeddings"]
    text["tie_word_embeddings"] = True
    tied = stored(write(tmp_path, {"model_type": outer_type, "text_config": text}))
    assert parameters(stored_parts) - parameters(tied) == 500 * 64
    assert not tied.notes


def test_what_kimi_k3_adds(tmp_path: Path) -> None:
    """K3 has gates as wide as its heads, experts in a narrower width, and weights of residuals."""
    document = {"model_type": "kimi_linear", **STORED["kimi_linear"]}
    delta = {**document["linear_attn_config"], "use_full_rank_gate": True}
    changes_of_k3 = {
        "linear_attn_config": delta, "mla_use_output_gate": True, "routed_expert_hidden_size": 32,
        "latent_moe_use_norm": True, "attn_res_block_size": 2,
    }  # fmt: skip
    kimi_linear, k3 = (
        stored(write(tmp_path, {**document, **changes})) for changes in ({}, changes_of_k3)
    )
    gates = 4 * (64 * 24 - (64 * 6 + 6 * 24)) + 2 * 64 * 8 * 10
    experts = 5 * (2 * 64 * 32 + 32 - 4 * 3 * 24 * 32)
    residuals = (2 * 6 + 1) * (64 + 64)
    assert parameters(k3) - parameters(kimi_linear) == gates + experts + residuals


def test_every_missing_key_is_reported(tmp_path: Path) -> None:
    """A file without keys of several parts of its layers is refused with each of them."""
    removed = {"kv_lora_rank", "v_head_dim", "moe_intermediate_size", "n_routed_experts"}
    document = {key: value for key, value in STORED["deepseek_v3"].items() if key not in removed}
    document |= {"model_type": "deepseek_v3", "vocab_size": None, "tie_word_embeddings": "no"}
    with pytest.raises(RefusedError) as error:
        stored(write(tmp_path, document))
    missing = {reason.key for reason in error.value.refusals}
    assert {"kv_lora_rank", "v_head_dim", "vocab_size"} <= missing
    assert any("n_routed_experts" in key for key in missing)


TOWER = {
    "depth": 3, "hidden_size": 24, "num_heads": 2, "intermediate_size": 40, "in_channels": 3,
    "patch_size": 4, "temporal_patch_size": 2, "spatial_merge_size": 2, "out_hidden_size": 64,
    "num_position_embeddings": 16,
}  # fmt: skip


@pytest.mark.parametrize(
    ("outer_type", "text", "deep"), [("qwen3_vl", "qwen3", [0, 1]), ("qwen3_5", "qwen3_5_text", [])]
)
def test_a_vision_tower_is_counted(
    tmp_path: Path, outer_type: str, text: str, deep: list[int]
) -> None:
    """Where a file says the size of what reads images, it is among the weights."""
    tower = {**TOWER, "deepstack_visual_indexes": deep}
    document = {"model_type": outer_type, "vision_config": tower}
    document["text_config"] = {
        "model_type": outer_type + "_text",
        **STORED[text],
        "pad_token_id": 0,
    }
    write(tmp_path, document, "config.json")
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(tmp_path))
    stored_parts = stored(tmp_path)
    assert parameters(stored_parts) == sum(parameter.numel() for parameter in model.parameters())
    assert not stored_parts.notes
    vision_elements = sum(
        weight.elements for weight in stored_parts.weights if weight.kind == "vision"
    )
    assert vision_elements == sum(
        parameter.numel() for parameter in model.model.visual.parameters()
    )


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("llama", {"model_type": "lama"}, "model_type 'lama' is not read"),
        ("llama", {"text_config": {}}, "text_config {...} is a part of 'llama'"),
        ("llama", {"num_hidden_layers": 1001}, "num_hidden_layers 1001 is more than 1000"),
        ("llama", {"num_key_value_heads": 3}, "num_key_value_heads 3 does not divide"),
        ("nemotron_h", {"hybrid_override_pattern": "M-E*MX"}, "'X' of layer 5"),
        ("nemotron_h", {"hybrid_override_pattern": "M", "num_hidden_layers": 6}, "has 1 entries"),
        ("gpt_oss", {"layer_types": ["full_attention"]}, "has 1 entries for 6 layers"),
        (
            "gemma4_text",
            {"num_kv_shared_layers": 5},
            "num_kv_shared_layers 5 leaves no layer of 'full_attention' that caches",
        ),
        (
            "gemma4_text",
            {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 96},
            "vocab_size_per_layer_input 96 differs from vocab_size",
        ),
        ("kimi_linear", {"linear_attn_config": {"kda_layers": [1]}}, "do not part 6 layers"),
        ("deepseek_v3", {"moe_layer_freq": 2}, "moe_layer_freq 2 is not understood"),
        ("llama4_text", {"moe_layers": [6]}, "moe_layers [...] names others than 6 layers"),
        ("hunyuan_v1_moe", {"moe_intermediate_size": 95}, "moe_intermediate_size 95 differs"),
        ("hunyuan_v1_moe", {"use_mixed_mlp_moe": False}, "use_mixed_mlp_moe False leaves out"),
        ("hunyuan_v1_moe", {"use_cla": True, "use_qk_norm": False}, "use_qk_norm False is one"),
        ("hunyuan_v1_dense", {"use_cla": True}, "use_cla True lets layers share a cache"),
    ],
)
def test_what_is_not_understood_is_refused(
    tmp_path: Path, name: str, changes: dict[str, Any], message: str
) -> None:
    """Nothing is counted of a file that asks for what is not known, and the key is named."""
    path = write(tmp_path, {"model_type": name, **STORED[name], **changes})
    with pytest.raises(RefusedError, match=re.escape(message)):
        stored(path)


@given(st.sampled_from(sorted(STORED)), st.data())
@settings(max_examples=300, deadline=None)
def test_any_value_of_any_key_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject
) -> None:
    """Whatever a key holds, there is an answer of positive counts or one message of the file's."""
    document: dict[str, Any] = {"model_type": name, **STORED[name]}
    key = data.draw(st.sampled_from(sorted(document)))
    document[key] = data.draw(VALUES)
    path = write(tmp_path_factory.getbasetemp(), document)
    error = refusal(lambda: stored(path))
    assert str(path) in error.what if error else parameters(stored(path)) > 0


def test_an_own_name_of_a_key_is_the_one_that_is_told(tmp_path: Path) -> None:
    """An error names a key as the file calls it."""
    with pytest.raises(RefusedError, match=r"n_heads 3\.5 is no whole number"):
        stored(write(tmp_path, {**_LLADA, "n_heads": 3.5}))
