"""A config.json that holds a text model among others, or that a library saved again."""

from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET, structs
from nearfree.decoders.model_file import read_model_file
from nearfree.decoders.text_part import text_part
from nearfree.decoders.weights import stored
from nearfree.errors import RefusedError

from decoders.files import SMALL, change, parameters, refusal, write
from decoders.test_config_file import read


@pytest.mark.parametrize(
    ("outer_type", "kind"),
    [
        ("qwen3_vl", "qwen3_vl_text"),
        ("qwen3_vl_moe", "qwen3_vl_moe_text"),
        ("qwen2_5_vl", "qwen2_5_vl_text"),
        ("mistral3", "mistral"),
        ("aya_vision", "cohere2"),
        ("cohere2_vision", "cohere2"),
        ("exaone4_5", "exaone4"),
        ("glm46v", "glm4v_text"),
        ("glm_ocr", "glm_ocr_text"),
        ("hunyuan_vl", "hunyuan_v1_dense"),
        ("muse_glimmer", "muse_glimmer_text"),
        ("voxtral", "llama"),
        ("internvl", "qwen2"),
        ("kimi_vl", "deepseek_v3"),
        ("lighton_ocr", "qwen3"),
        ("llava", "mistral"),
        ("llava_next", "llama"),
        ("llava_onevision", "qwen2"),
        ("idefics3", "llama"),
        ("smolvlm", "llama"),
        ("minicpmv4_6", "qwen3_5_text"),
        ("minicpmv4_7", "qwen3_5_text"),
        ("nemotron_h_omni", "nemotron_h"),
        ("paddleocr_vl", "ernie4_5"),
    ],
)
def test_the_part_that_decodes_text_is_read(tmp_path: Path, outer_type: str, kind: str) -> None:
    """Of a model of several parts its text is read, with the dtype of the whole."""
    text = change(kind, torch_dtype=...)
    decoder = read(tmp_path, {"model_type": outer_type, "dtype": "float16", "text_config": text})
    assert decoder == structs.replace(read(tmp_path, SMALL[kind]), dtype="float16")
    for key in ("llm_config", "thinker_config"):
        document = {"model_type": outer_type, "text_config": text, key: text}
        error = refusal(lambda document=document: read(tmp_path, document))
        assert error
        assert f"{key} {{...}} is not where" in error.what


@pytest.mark.parametrize(
    ("outer_type", "path", "kind"),
    [
        ("qwen2_5_omni", ("thinker_config", "text_config"), "qwen2"),
        ("qwen3_omni_moe", ("thinker_config", "text_config"), "qwen3_moe"),
        ("internvl_chat", ("llm_config",), "qwen3"),
        ("NemotronH_Nano_VL_V2", ("llm_config",), "nemotron_h"),
        ("NemotronH_Nano_Omni_Reasoning_V3", ("llm_config",), "nemotron_h"),
        ("dots_ocr", (), "qwen2"),
        ("paddleocr_vl", (), "ernie4_5"),
        ("hunyuan_vl", (), "hunyuan_v1_dense"),
    ],
)
def test_the_part_is_read_where_it_stands(
    tmp_path: Path, outer_type: str, path: tuple[str, ...], kind: str
) -> None:
    """A text within other objects is the same, and a key of it is named with all of them."""

    def document(**changes: Any) -> dict[str, Any]:
        inner = change(kind, torch_dtype=..., **changes)
        for key in reversed(path):
            inner = {"model_type": inner["model_type"], key: inner}
        return {**inner, "model_type": outer_type, "dtype": "float16"}

    assert read(tmp_path, document()) == structs.replace(
        read(tmp_path, SMALL[kind]), dtype="float16"
    )
    error = refusal(lambda: read(tmp_path, document(hidden_size=0)))
    assert error
    assert ".".join((*path, "hidden_size 0 is no whole number")) in error.what


PIXTRAL = {
    "model_type": "mistral", "head_dim": 128, "hidden_size": 5120, "intermediate_size": 14336,
    "num_hidden_layers": 40, "num_key_value_heads": 8, "sliding_window": None,
    "vocab_size": 131072,
}  # fmt: skip


@pytest.mark.parametrize(
    ("outer_type", "text", "published"),
    [
        ("llava", {"model_type": "llama", "vocab_size": 32064}, 6_738_939_904),
        ("llava", PIXTRAL, 12_247_782_400),
        (
            "idefics3",
            {"model_type": "llama", "num_key_value_heads": 8, "intermediate_size": 14336,
             "vocab_size": 128256},
            8_030_261_248,
        ),
        (
            "paligemma",
            {"model_type": "gemma", "hidden_size": 2048, "intermediate_size": 16384,
             "num_attention_heads": 8, "num_hidden_layers": 18, "num_key_value_heads": 1,
             "vocab_size": 257216},
            2_923_466_480 - 414_803_696,  # what sees, and what leads from there to the text
        ),
    ],
)  # fmt: skip
def test_sizes_that_published_wholes_leave_out_are_those_of_the_text_s_class(
    tmp_path: Path, outer_type: str, text: dict[str, Any], published: int
) -> None:
    """The text of LLaVA 1.5 is Vicuna's with 64 more words, Pixtral's is Mistral Nemo.

    That of PaliGemma is Gemma 2B with more words.

    A file of the text alone is asked for the same sizes.
    """
    document = {"model_type": outer_type, "dtype": "bfloat16", "text_config": text}
    assert parameters(stored(write(tmp_path, document))) == published
    assert read(tmp_path, document).heads == text.get("num_attention_heads", 32)
    error = refusal(lambda: read(tmp_path, {**text, "dtype": "bfloat16"}))
    assert error
    silent = "head_dim" if outer_type == "paligemma" else "num_attention_heads"
    assert f"{silent} is missing" in error.what


@pytest.mark.parametrize("outer_type", ["llava", "llava_next", "llava_onevision"])
def test_a_text_that_ties_its_head_is_believed(tmp_path: Path, outer_type: str) -> None:
    """Of LLaVA's models the text's own word counts where the whole says no: engines read that."""
    text = change("qwen2", tie_word_embeddings=True)
    document = {"model_type": outer_type, "text_config": text, "tie_word_embeddings": False}
    tied = parameters(stored(write(tmp_path, document)))
    text["tie_word_embeddings"] = False
    assert parameters(stored(write(tmp_path, document))) - tied == 500 * 64


def test_what_any_object_says_of_the_whole_is_kept(tmp_path: Path) -> None:
    """The outermost object that says an element type, or what is quantised, is asked."""
    text = change("qwen2", torch_dtype="float32")
    thinker = {"model_type": "qwen2_5_omni_thinker", "torch_dtype": "float16", "text_config": text}
    document = {"model_type": "qwen2_5_omni", "thinker_config": thinker}
    assert read(tmp_path, document).dtype == "float16"
    assert read(tmp_path, {**document, "torch_dtype": "bfloat16"}).dtype == "bfloat16"
    quantised = {"quantization_config": {"quant_method": "fp8"}}
    for outer in (
        {**document, **quantised},
        {**document, "thinker_config": {**thinker, **quantised}},
    ):
        assert text_part(write(tmp_path, outer)).keys.has("quantization_config")


@pytest.mark.parametrize(
    ("alias", "kind"),
    [
        ("exaone4_5_text", "exaone4"),
        ("gemma4_unified_text", "gemma4_text"),
        ("mimo_v2", "mimo_v2_flash"),
        ("paddleocr_vl_text", "ernie4_5"),
        ("qwen2_5_omni_text", "qwen2"),
        ("qwen3_omni_moe_text", "qwen3_moe"),
    ],
)
def test_a_model_type_that_is_called_otherwise_is_the_same(
    tmp_path: Path, alias: str, kind: str
) -> None:
    """A model type with a name of its own is read as the one that engines run it as."""
    assert read(tmp_path, change(kind, model_type=alias)) == read(tmp_path, SMALL[kind])


def test_gemma_4_unified_has_no_inputs_of_layers(tmp_path: Path) -> None:
    """Of the two classes one has such inputs where a file says nothing."""
    config = change("gemma4_text", hidden_size_per_layer_input=...)
    assert read(tmp_path, config).layer_inputs == 256
    unified = read(tmp_path, {**config, "model_type": "gemma4_unified_text"})
    assert unified == read(tmp_path, SMALL["gemma4_text"])


def test_adapters_of_a_text_are_refused(tmp_path: Path) -> None:
    """InternVL's files say whether their text has adapters, whose products are not read."""
    document = {"model_type": "internvl_chat", "llm_config": SMALL["qwen2"], "use_llm_lora": 0}
    assert read(tmp_path, document) == read(tmp_path, SMALL["qwen2"])
    error = refusal(lambda: read(tmp_path, {**document, "use_llm_lora": 16}))
    assert error
    assert "use_llm_lora 16 adds adapters to its text" in error.what


@pytest.mark.parametrize(
    ("document", "sees"),
    [
        ({"model_type": "gemma3", "text_config": SMALL["gemma3_text"]}, True),
        (SMALL["gemma3_text"], UNSET),
        (change("gemma4_text", use_bidirectional_attention="vision"), True),
        (change("gemma4_text", use_bidirectional_attention=None), UNSET),
    ],
)
def test_positions_of_an_image_that_attend_to_each_other_are_known(
    tmp_path: Path, document: dict[str, Any], sees: object
) -> None:
    """Gemma 3 with an image part has them, and Gemma 4 where its text says so."""
    assert read(tmp_path, document).sees_images is sees


def test_an_outer_key_is_kept_with_the_part(tmp_path: Path) -> None:
    """What the whole says of quantisation is not lost with its part."""
    document = {
        "model_type": "qwen3_vl", "text_config": SMALL["qwen3_vl_text"],
        "quantization_config": {"quant_method": "fp8"},
    }  # fmt: skip
    path = write(tmp_path, document)
    assert text_part(path).keys.has("quantization_config")


@pytest.mark.parametrize(
    ("kind", "new", "old"),
    [
        ("deepseek_v4", {"compress_rates": {"compressed_sparse_attention": 4}}, "compress_ratios"),
        ("minimax_m3_vl_text", {"index_topk_blocks": 16}, "sparse_attention_config"),
        ("step3p5", {"per_layer_config": {}}, "moe_num_experts"),
    ],
)
def test_a_file_that_was_saved_again_is_refused_by_name(
    tmp_path: Path, kind: str, new: dict[str, Any], old: str
) -> None:
    """Where transformers has given keys other names, the published file is asked for."""
    assert read(tmp_path, change(kind, **new))
    with pytest.raises(RefusedError) as error:
        read(tmp_path, change(kind, **new, **{old: ...}))
    (only,) = error.value.refusals
    assert [only.key] == list(new)
    assert f"replaces {old}: transformers has saved the file again" in only.reason
    assert "published" in only.remedy


_FAR = {str(layer): {"head_dim": 32, "num_key_value_heads": 1} for layer in (1, 3, 5)}


@pytest.mark.parametrize("padded", [False, True])
def test_gemma_4_saved_again_is_the_same(tmp_path: Path, *, padded: bool) -> None:
    """Heads of layers without a window are read layer by layer, too."""
    options = {"attention_k_eq_v": True}
    published = read(tmp_path, change("gemma4_text", **options, num_global_key_value_heads=1))
    full_layers = {f"{layer:0>2}" if padded else layer: setting for layer, setting in _FAR.items()}
    saved_again = change(
        "gemma4_text", **options, global_head_dim=..., per_layer_config=full_layers
    )
    assert read(tmp_path, saved_again) == published


@pytest.mark.parametrize(
    "full_layers",
    [
        {},
        {**_FAR, "2": _FAR["1"]},
        {"1": _FAR["1"], "3": _FAR["1"]},
        {**_FAR, "5": {"head_dim": 16}},
        {layer: {**setting, "intermediate_size": 8} for layer, setting in _FAR.items()},
    ],
    ids=["none", "with a window", "some", "others", "more"],
)
def test_layers_that_differ_otherwise_are_refused(
    tmp_path: Path, full_layers: dict[str, Any]
) -> None:
    """Only layers without a window may have heads of their own, all the same and no more."""
    with pytest.raises(RefusedError, match=r"per_layer_config \{...\} does not say the same"):
        read(tmp_path, change("gemma4_text", per_layer_config=full_layers))


def test_each_head_has_its_key_where_a_file_says_no_number(tmp_path: Path) -> None:
    """Llama's class takes as many heads of keys as of queries; memory has the same."""
    file = read_model_file(write(tmp_path, change("llama", num_key_value_heads=...)))
    assert (file.decoder and file.decoder.kv_heads, file.refusals) == (8, ())
    assert [entry.elements for entry in file.cache] == [2 * 8 * 8]
