"""A config.json as a decoder: each family by its rule, and unknown keys refused."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET, structs
from nearfree.decoders.attention_kinds import Grouped, Latent
from nearfree.decoders.config_file import read_decoder
from nearfree.decoders.decoder import Decoder, Experts
from nearfree.decoders.details import read_details
from nearfree.decoders.families import FAMILIES, UNREAD
from nearfree.decoders.model_file import read_model_file
from nearfree.decoders.text_part import text_part
from nearfree.decoders.weights import stored
from nearfree.errors import ConfigError, RefusedError

from decoders.files import CONFIG, DEFAULTED, SHIPPED, SMALL, change, parameters, refusal, write
from decoders.stored_files import STORED

_8B = {
    "dtype": "bfloat16", "d_model": 4096, "layers": 32, "heads": 32, "kv_heads": 8, "head_dim": 128,
}  # fmt: skip
_MINI = {
    "dtype": "bfloat16", "d_model": 2048, "layers": 20, "vocabulary": 157184, "heads": 16,
    "kv_heads": 4, "head_dim": 128, "d_ff": 5120, "moe_layers": 19,
    "experts": Experts(experts=256, top_k=8, d_ff=512, shared_d_ff=512),
}  # fmt: skip
_QWEN3 = {**_8B, "layers": 36, "vocabulary": 151936, "d_ff": 12288}
_GPT_OSS = {"heads": 64, "kv_heads": 8, "head_dim": 64}
DECODERS: dict[str, dict[str, Any]] = {
    "deepseek_v2_lite": {
        "model_type": "deepseek_v2", "dtype": "bfloat16", "d_model": 2048, "layers": 27,
        "vocabulary": 102400, "heads": 16, "kv_heads": 1, "head_dim": 576, "d_ff": 10944,
        "moe_layers": 26,
        "experts": Experts(experts=64, top_k=6, d_ff=1408, shared_d_ff=2816),
        "kinds": (
            Latent(
                layers=tuple(range(27)), heads=16, latent=512, rope_dim=64, nope_dim=128,
                value_dim=128,
            ),
        ),
    },
    "gpt_oss_20b": {
        "model_type": "gpt_oss", "dtype": "bfloat16", "d_model": 2880, "layers": 24,
        "vocabulary": 201088, **_GPT_OSS, "window": 128, "moe_layers": 24,
        "experts": Experts(experts=32, top_k=4, d_ff=2880),
        "kinds": (
            Grouped(layers=tuple(range(0, 24, 2)), window=128, sinks=True, **_GPT_OSS),
            Grouped(layers=tuple(range(1, 24, 2)), sinks=True, **_GPT_OSS),
        ),
    },
    "qwen3_8b": {**_QWEN3, "model_type": "qwen3"},
    "wedlm_8b": {**_QWEN3, "model_type": "wedlm"},
    "ling_2_0_mini": {**_MINI, "model_type": "bailing_moe"},
    "llada_2_1_mini": {**_MINI, "model_type": "llada2_moe"},
    "llama_2_7b": {
        **_8B, "model_type": "llama", "dtype": "float16", "kv_heads": 32, "vocabulary": 32000,
        "d_ff": 11008,
    },
    "llama_3_1_8b": {**_8B, "model_type": "llama", "vocabulary": 128256, "d_ff": 14336},
    "llama_3_2_1b": {
        "model_type": "llama", "dtype": "bfloat16", "d_model": 2048, "layers": 16, "heads": 32,
        "kv_heads": 8, "head_dim": 64, "vocabulary": 128256, "d_ff": 8192,
    },
    "mistral_7b_v0_3": {**_8B, "model_type": "mistral", "vocabulary": 32768, "d_ff": 14336},
    "mixtral_8x7b": {
        **_8B, "model_type": "mixtral", "vocabulary": 32000, "moe_layers": 32,
        "experts": Experts(experts=8, top_k=2, d_ff=14336),
    },
    "qwen3_30b_a3b": {
        "model_type": "qwen3_moe", "dtype": "bfloat16", "d_model": 2048, "layers": 48,
        "vocabulary": 151936, "heads": 32, "kv_heads": 4, "head_dim": 128, "moe_layers": 48,
        "experts": Experts(experts=128, top_k=8, d_ff=768),
    },
}  # fmt: skip
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5))
VALUES = st.one_of(
    SCALARS,
    st.sampled_from([0, -1, 10**7 + 1, 10**400, "1", 1.0, [], [1], {}, [[]], "\ud800"]),
    st.lists(SCALARS, max_size=3),
    st.dictionaries(st.text(max_size=3), SCALARS, max_size=2),
)


def read(folder: Path, document: object) -> Decoder:
    """Return what is read of a document."""
    return read_decoder(write(folder, document))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_each_shipped_model_is_read_in_full(path: Path) -> None:
    """Each file under config/models gives the published shape of its model."""
    assert read_decoder(path) == Decoder(name=path.stem, **DECODERS[path.stem])


def test_all_shipped_models_are_compared() -> None:
    """No shipped model is without its shape here, and no shape without its file."""
    assert {path.stem for path in SHIPPED} == set(DECODERS)


def test_every_family_has_a_small_file(tmp_path: Path) -> None:
    """A model type is read from its least keys; what the file says of shape is what is read."""
    assert set(SMALL) == set(FAMILIES)
    for kind, document in SMALL.items():
        decoder = read(tmp_path, document)
        heads = (
            (8, 1, 12 + 4)
            if "kv_lora_rank" in document
            else (8, 8 if kind in ("phi", "gpt_neox") else 2, document.get("head_dim", 8))
        )
        if "compress_ratios" in document:  # all heads share one key, as wide as a head
            heads = (8, 1, 128)
        assert (decoder.model_type, decoder.name) == (kind, "small")
        assert (decoder.d_model, decoder.layers, decoder.vocabulary) == (64, 6, 500)
        assert (decoder.heads, decoder.kv_heads, decoder.head_dim) == heads
        d_ff = document.get("intermediate_size_mlp", 512 if "block_configs" in document else 96)
        if kind == "granitemoehybrid":  # beside its experts, whose width the usual key has
            d_ff = document["shared_intermediate_size"]
        assert decoder.dense_layers == 0 or decoder.d_ff == d_ff
        assert (decoder.experts is None) == (decoder.moe_layers == 0)


@given(st.data())
@settings(max_examples=400, deadline=None)
def test_a_wrong_value_of_any_key_is_refused_by_name(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Whatever a key holds, the file is read or refused by its name; a shape's key by its own."""
    folder = tmp_path_factory.getbasetemp()
    kind = data.draw(st.sampled_from(sorted(SMALL)))
    key = data.draw(st.sampled_from(sorted(SMALL[kind])))
    value = data.draw(VALUES)
    path = write(folder, change(kind, **{key: value}))
    error = refusal(lambda: read_decoder(path))
    number = type(value) is int and -1 <= value <= 10**7
    if error is None:
        unchanged = value == SMALL[kind][key] or (key == "model_type" and value in SMALL)
        equivalent = kind == "hunyuan_v1_moe" and isinstance(value, list) and len(value) == 1
        equivalent = equivalent or (type(value) is bool and type(SMALL[kind][key]) is bool)
        assert number or unchanged or equivalent or (value is None and (kind, key) in DEFAULTED)
    else:
        assert str(path) in error.what
        assert number or re.search(rf"(: |\n  )(\w+ or )?{key}\b| is not JSON", error.what)


@given(st.sampled_from(sorted(SMALL)), st.dictionaries(st.text(max_size=30), VALUES, max_size=5))
@settings(max_examples=100, deadline=None)
def test_keys_that_are_not_read_change_nothing(
    tmp_path_factory: pytest.TempPathFactory, kind: str, unread: dict[str, Any]
) -> None:
    """Keys that no rule reads may hold anything that is JSON."""
    document = {f"x_{key}": value for key, value in unread.items()} | SMALL[kind]
    path = write(tmp_path_factory.getbasetemp(), document)
    error = refusal(lambda: read_decoder(path))
    assert error is None or "is not JSON" in error.what  # a number of too many digits


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    """No key that decides the work has a value that the file does not say."""
    needed = [(kind, key) for kind in SMALL for key in SMALL[kind] if (kind, key) not in DEFAULTED]
    for kind, key in needed:
        path = write(tmp_path, change(kind, **{key: ...}))
        error = refusal(lambda path=path: read_decoder(path))
        assert error, f"{kind} is read without {key}"
        pattern = rf"{path}: (\w+ or )?{key}( or \w+)? is missing"
        assert re.fullmatch(pattern, error.what), kind


@pytest.mark.parametrize(
    ("kind", "changes", "thing"),
    [
        ("llama", {"text_config": {}}, "text_config"),
        ("bailing_moe", {"kv_lora_rank": 512}, "kv_lora_rank 512"),
        ("bailing_moe", {"layer_group_size": 5}, "layer_group_size 5"),
        (
            "llama",
            {"draft_vocab_size": 32000},
            "draft_vocab_size 32000 says that it is the head of",
        ),
        ("llama", {"architectures": ["LlamaForCausalLMEagle3"]}, "is the head of a drafter"),
        ("llama", {"mamba_d_state": 256}, "mamba_d_state 256 says that some layers keep a state"),
        ("llama", {"is_encoder_decoder": True}, "is_encoder_decoder True"),
        ("llama", {"model_type": "lama"}, "model_type 'lama'"),
        (
            "llama",
            {"model_type": "jamba"},
            "first version, which engines advance by one position of a",
        ),
        ("llama", {"torch_dtype": "float8_e4m3fn"}, "torch_dtype 'float8_e4m3fn'"),
        ("llama", {"torch_dtype": "auto"}, "torch_dtype 'auto'"),
        ("llama", {"dtype": "float16"}, "dtype 'float16' differs from torch_dtype"),
        ("llama", {"num_key_value_heads": 3}, "num_key_value_heads 3 does not divide"),
        ("llama", {"hidden_size": 65}, "hidden_size 65 is no multiple"),
        ("llama", {"sliding_window": 4096}, "sliding_window 4096"),
        ("llama", {"layer_types": ["full_attention"]}, "layer_types"),
        ("llama", {"layer_types": ["full_attention"] * 5 + ["mamba"]}, "'mamba'"),
        ("mistral", {"sliding_window": 8, "layer_types": ["full_attention"] * 6}, "layer_types"),
        ("mixtral", {"num_experts_per_tok": 5}, "num_experts_per_tok 5 is larger"),
        ("qwen3_moe", {"mlp_only_layers": [True]}, "mlp_only_layers [...] is no list"),
        ("llama", {"is_encoder_decoder": "no"}, "is_encoder_decoder 'no'"),
        ("mixtral", {"num_experts": 5}, "differs from num_experts"),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 3}, "max_window_layers 3"),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 0}, "sliding_window is miss"),
        ("qwen3_moe", {"use_sliding_window": True}, "use_sliding_window True"),
        ("bailing_moe", {"moe_shared_expert_intermediate_size": 48}, "moe_shared_expert"),
    ],
)
def test_unknown_values_are_refused_by_name(
    tmp_path: Path, kind: str, changes: dict[str, Any], thing: str
) -> None:
    """A value that changes the work and is not supported is named, never ignored."""
    with pytest.raises(ConfigError, match=r"small\.json: ") as error:
        read(tmp_path, change(kind, **changes))
    assert thing in error.value.what


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_key_value_heads": 3}, "num_key_value_heads 3 does not divide"),
        ({"num_experts_per_tok": 17}, "num_experts_per_tok 17 is larger than num_experts 16"),
        ({"model_type": "qwen4_moe"}, "model_type 'qwen4_moe' is not read"),
        ({"hidden_size": ...}, "hidden_size is missing"),
        ({"hidden_size": "a\nb"}, r"hidden_size 'a\nb' is no whole number"),
        ({"model_type": "a\nb"}, r"model_type 'a\nb' is not read"),
    ],
)
@pytest.mark.parametrize("reader", [read_decoder, read_details])
def test_a_refusal_is_one_line(
    tmp_path: Path, reader: Callable[[Path], object], changes: dict[str, Any], message: str
) -> None:
    """A refusal has the path and the key in one line, whatever the file holds."""
    path = write(tmp_path, change("qwen3_moe", **changes))
    error = refusal(lambda: reader(path))
    assert error is not None
    assert error.what.startswith(f"{path}: {message}")
    assert len(str(error).splitlines()) == 1


def test_the_nearest_model_types_are_named(tmp_path: Path) -> None:
    """The refusal of an unknown model type lists similar known ones."""
    with pytest.raises(ConfigError) as error:
        read(tmp_path, change("qwen3_moe", model_type="qwen3_moee"))
    assert "qwen3_moe," in error.value.remedy


@pytest.mark.parametrize("kind", UNREAD)
def test_a_known_unsupported_model_type_has_its_reason(tmp_path: Path, kind: str) -> None:
    """What of its layers has no module is said, alone and as the text of a model of parts."""
    model_of_parts = {"gemma3n_text": "gemma3n", "inkling_text": "inkling_mm_model"}
    document = change("llama", model_type=kind)
    documents = [document, {"model_type": kind.removesuffix("_text"), "text_config": document}]
    documents[1]["model_type"] = model_of_parts.get(kind, documents[1]["model_type"])
    for document_ in documents[: 1 + (kind.endswith("_text") and kind != "hrm_text")]:
        error = refusal(lambda case=document_: read(tmp_path, case))
        assert error
        assert f"model_type {kind!r} is not read: {UNREAD[kind]}" in error.what
    assert kind not in FAMILIES


@pytest.mark.parametrize(
    ("kind", "changes", "window"),
    [
        ("mistral", {"sliding_window": None}, None),
        ("mistral", {"sliding_window": 4096}, 4096),
        ("mistral", {"sliding_window": 9, "layer_types": ["sliding_attention"] * 6}, 9),
        ("qwen2", {"use_sliding_window": False, "sliding_window": 4096}, None),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 6}, None),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 0}, 9),
        ("llada2_moe", {"use_sliding_window": False, "sliding_window": 4096}, None),
        ("llama", {"layer_types": ["full_attention"] * 6}, None),
    ],
)
def test_a_window_of_every_layer_is_read(
    tmp_path: Path, kind: str, changes: dict[str, Any], window: int | None
) -> None:
    """A window counts where it is switched on and holds for all layers."""
    assert read(tmp_path, change(kind, **changes)).window == window


@given(
    layers=st.integers(1, 40), step=st.integers(1, 9), dense_layers=st.lists(st.integers(-3, 45)),
    kind=st.sampled_from(["qwen2_moe", "qwen3_moe"]),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_qwens_sparse_layers_are_counted(
    tmp_path_factory: pytest.TempPathFactory,
    layers: int,
    step: int,
    dense_layers: list[int],
    kind: str,
) -> None:
    """A layer has experts if its number is a multiple of the step and it is in no list."""
    folder = tmp_path_factory.getbasetemp()
    changes = {
        "decoder_sparse_step": step, "mlp_only_layers": dense_layers, "num_hidden_layers": layers,
        "intermediate_size": 96,
    }  # fmt: skip
    decoder = read(folder, change(kind, **changes))
    sparse = [i for i in range(layers) if i not in dense_layers and (i + 1) % step == 0]
    assert decoder.moe_layers == len(sparse)
    assert (decoder.d_ff is None) == (len(sparse) == layers)


@given(
    layers=st.integers(1, 40), start=st.integers(0, 45), end=st.integers(-1, 45),
    interval=st.integers(1, 9),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_ernies_sparse_layers_are_counted(
    tmp_path_factory: pytest.TempPathFactory, layers: int, start: int, end: int, interval: int
) -> None:
    """A layer has experts if it is in the range and its number a multiple of the interval."""
    folder = tmp_path_factory.getbasetemp()
    changes = {
        "num_hidden_layers": layers, "moe_layer_start_index": start,
        "moe_layer_end_index": end, "moe_layer_interval": interval,
    }  # fmt: skip
    last_layer = layers - 1 if end == -1 else end
    sparse = [i for i in range(layers) if start <= i <= last_layer and (i + 1) % interval == 0]
    assert read(folder, change("ernie4_5_moe", **changes)).moe_layers == len(sparse)


@pytest.mark.parametrize(("first_dense", "moe_layers"), [(0, 6), (1, 5), (6, 0), (7, 0)])
def test_first_layers_are_dense(tmp_path: Path, first_dense: int, moe_layers: int) -> None:
    """As many first layers as the file says have no experts, all of them if it says too many."""
    decoder = read(tmp_path, change("bailing_moe_v2", first_k_dense_replace=first_dense))
    assert (decoder.moe_layers, decoder.experts is None) == (moe_layers, moe_layers == 0)


@pytest.mark.parametrize(("kind", "shared"), [
    ("bailing_moe", 48), ("glm4_moe", 48), ("ernie4_5_moe", 48), ("qwen2_moe", 80),
    ("qwen3_moe", 0), ("mixtral", 0),
])  # fmt: skip
def test_shared_experts_are_one_ffn(tmp_path: Path, kind: str, shared: int) -> None:
    """Experts that every token passes are as wide as all of them together."""
    experts = read(tmp_path, SMALL[kind]).experts
    assert experts is not None
    assert experts.shared_d_ff == shared


def test_all_unknown_keys_are_reported_at_once(tmp_path: Path) -> None:
    """Latent attention, hybrid layers, mixed windows and missing keys are in one message."""
    changes = {
        "kv_lora_rank": 512, "full_attention_interval": 4, "num_key_value_heads": 3,
        "layer_types": ["full_attention"] * 5 + ["sliding_attention"], "vocab_size": ...,
    }  # fmt: skip
    path = write(tmp_path, change("llama", **changes))
    with pytest.raises(RefusedError) as error:
        read_decoder(path)
    assert {refusal_.key for refusal_ in error.value.refusals} == set(changes)
    path = write(tmp_path, change("llama", model_type="lama", **changes))
    with pytest.raises(RefusedError) as error:
        read_decoder(path)
    assert {refusal_.key for refusal_ in error.value.refusals} == {
        "model_type", "kv_lora_rank", "full_attention_interval", "layer_types",
    }  # fmt: skip


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


def test_infinity_is_a_number_that_no_shape_has(tmp_path: Path) -> None:
    """Infinity and NaN are read as Hugging Face reads them, and are no shape of a model."""
    limits = {"time_step_limit": [0.0, float("inf")]}
    assert read(tmp_path, change("llama", **limits)) == read(tmp_path, SMALL["llama"])
    error = refusal(lambda: read(tmp_path, change("llama", hidden_size=float("inf"))))
    assert error
    assert "hidden_size inf is no whole number" in error.what


def test_an_outer_key_is_kept_with_the_part(tmp_path: Path) -> None:
    """What the whole says of quantisation is not lost with its part."""
    document = {
        "model_type": "qwen3_vl", "text_config": SMALL["qwen3_vl_text"],
        "quantization_config": {"quant_method": "fp8"},
    }  # fmt: skip
    path = write(tmp_path, document)
    assert text_part(path).keys.has("quantization_config")


def test_a_missing_dtype_has_a_note(tmp_path: Path) -> None:
    """Beside quantised weights a missing dtype is bfloat16, and a note says so."""
    quantised = {"quantization_config": {"quant_method": "fp8"}}
    part = text_part(write(tmp_path, change("minimax_m2", torch_dtype=..., **quantised)))
    assert part.keys.text("dtype") == "bfloat16"
    assert part.notes == ("dtype is missing: bfloat16, as engines assume beside quantised weights",)
    assert not text_part(write(tmp_path, change("minimax_m2", **quantised))).notes


def test_a_dtype_that_published_files_leave_out_is_required(tmp_path: Path) -> None:
    """Hunyuan 3's have none, so that no one is sent there for it; it is asked for once."""
    file = read_model_file(write(tmp_path, change("hy_v3", torch_dtype=...)))
    (only,) = file.refusals
    assert (only.key, only.reason) == ("dtype or torch_dtype", "is missing")
    assert "the dtype of the checkpoint's weights, such as bfloat16" in only.remedy
    error = refusal(lambda: read(tmp_path, change("hy_v3", hidden_size=...)))
    assert error
    assert "Add it from the model's published config.json" in str(error)


def test_a_cache_format_that_engines_ignore_has_a_note(tmp_path: Path) -> None:
    """What AutoFP8 says of the cache leaves it in the element type, and a note says so."""
    section = {"quant_method": "fp8", "activation_scheme": "static", "kv_cache_scheme": "static"}
    file = read_model_file(write(tmp_path, change("llama", quantization_config=section)))
    assert file.precision is not None
    assert (file.refusals, file.precision.kv) == ((), "bfloat16")
    (note,) = file.notes
    assert note.startswith("kv_cache_scheme is static: engines cache in the element type")


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


def test_a_folder_gives_its_name(tmp_path: Path) -> None:
    """A folder stands for its config.json, and names the decoder."""
    folder = tmp_path / "Tiny-1B"
    folder.mkdir()
    write(folder, SMALL["llama"], "config.json")
    assert read_decoder(folder) == read_decoder(folder / "config.json")
    assert read_decoder(folder).name == "Tiny-1B"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not JSON"),
        (b"\xff\xfe{", "is not JSON"),
        (b"\xef\xbb\xbf{}", "is not JSON"),
        (b"[]", "holds no JSON object"),
        (b'{"model_type": NaN}', "model_type nan is no text"),
        (b'{"vocab_size": 1, "vocab_size": 2}', "'vocab_size' stands twice"),
        (b'{"vocab_size": ' + b"9" * 5000 + b"}", "is not JSON"),
        (b"[" * 200_000, "is not JSON"),
        (b'{"hidden_size": ' + b"[" * 900 + b"]" * 900 + b"}", "model_type is missing"),
        (b" " * 4_000_001, "is larger than"),
        (b"{}", "model_type is missing"),
    ],
    ids=range(11),
)
def test_a_hostile_file_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    """Any bytes end in one message that names the file."""
    path = tmp_path / "small.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as error:
        read_decoder(path)
    assert str(path) in error.value.what
    assert message in error.value.what


@given(st.binary(max_size=200))
@settings(max_examples=100, deadline=None)
def test_random_bytes_are_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    """Random bytes raise nothing but a ConfigError."""
    path = tmp_path_factory.getbasetemp() / "random.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError):
        read_decoder(path)


@pytest.mark.parametrize("path", ["nowhere.json", "x" * 5000, "a\0b", "/dev/null/x", "/dev/zero"])
def test_a_path_without_a_file_is_refused(path: str) -> None:
    """A path without a file is refused as such, whatever the system's error."""
    with pytest.raises(ConfigError):
        read_decoder(Path(path))


def test_a_folder_without_a_config_is_refused() -> None:
    """A folder without config.json says which file is missing."""
    with pytest.raises(ConfigError, match=r"published/config\.json is not there"):
        read_decoder(CONFIG / "published")


def test_a_model_of_one_position_is_refused_for_that_alone(tmp_path: Path) -> None:
    """Jamba's keys of states and of layers' kinds are understood: what is missing is a forward."""
    file = write(tmp_path, {"model_type": "jamba", "torch_dtype": "bfloat16", **STORED["jamba"]})
    with pytest.raises(RefusedError) as error:
        read_decoder(file)
    (refusal_,) = error.value.refusals
    assert (refusal_.key, "one position of a request" in refusal_.reason) == ("model_type", True)
