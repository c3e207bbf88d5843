"""The text part of a model: where its keys stand, and what its parts inherit and leave out."""

from pathlib import Path
from typing import Any, NamedTuple

from nearfree.decoders.gguf_files.config import read_values
from nearfree.decoders.keys import Keys
from nearfree.decoders.usual_names import with_usual_names
from nearfree.decoders.versions import text_type

_PARTS = ("text_config", "llm_config", "thinker_config", "language_config")
_OUTER = (
    "tie_word_embeddings", "dtype", "torch_dtype", "quantization_config", "compression_config",
)  # fmt: skip
"""Keys of a composite model that apply to its parts."""


class CompositeModel(NamedTuple):
    """A composite model: it has a text part, and others for images or sound.

    `text` is the default model type of the text part. In the checkpoint that part is under `root`
    and its LM head is `head`; in the file it is under the nested keys `at`. With `differ`, the
    composite's class ties the LM head to the embedding by default, but the text's does not. With
    `sees_images` all positions of an image attend to each other. With `silent`, published files
    leave out sizes of the text part, for which the text's class has defaults. With `text_ties` a
    text part that ties its LM head does so whatever the composite says.
    """

    text: str
    root: str
    head: str
    differ: bool = False
    at: tuple[str, ...] = ("text_config",)
    sees_images: bool = False
    silent: bool = False
    text_ties: bool = False


_TEXT_DEFAULTS = {
    "gemma": {"head_dim": 256},
    "gemma2": {"head_dim": 256},
    "llama": {
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
        "num_hidden_layers": 32, "num_attention_heads": 32,
    },
    "mistral": {
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    },
}  # fmt: skip
"""Defaults of a text part's class where the file of a composite model leaves them out.
Source: GemmaConfig, Gemma2Config, LlamaConfig and MistralConfig of transformers 5.23."""
_SEPARATE = ("language_model.model", "language_model.lm_head")
_INNER = ("model.language_model", "lm_head")
_PLAIN = ("model", "lm_head")
_THINKER = ("thinker.model", "thinker.lm_head")
_THINKER_KEYS = ("thinker_config", "text_config")
_NEMOTRON = ("language_model.backbone", "language_model.lm_head")

_OWN_TEXT = (
    "gemma4", "gemma4_unified", "deepseek_v41", "dots3_note", "gemma3n", "glm5_next",
    "mistral_large4", "qwen4_exp", "glm4v", "glm_ocr", "hunyuan_vl", "glm4v_moe", "muse_glimmer",
    "muse_spark", "diffusion_gemma", "qwen3_5", "qwen3_5_moe", "qwen3_vl", "qwen3_vl_moe",
)  # fmt: skip
"""Composite models whose text parts have their own model type with `_text` at its end."""
COMPOSITES = {
    **dict.fromkeys(("aya_vision", "cohere2_vision"), CompositeModel("cohere2", *_INNER)),
    "deepseek_vl_v2": CompositeModel("deepseek_v2", *_PLAIN, at=("language_config",)),
    "dots_ocr": CompositeModel("qwen2", *_PLAIN),
    "ernie4_5_vl_moe": CompositeModel("ernie4_5_vl_moe_text", *_PLAIN),
    "exaone4_5": CompositeModel("exaone4", *_INNER),
    "gemma3": CompositeModel("gemma3_text", *_SEPARATE, sees_images=True),
    "glm46v": CompositeModel("glm4v_text", *_INNER),
    **{kind: CompositeModel(f"{kind}_text", *_INNER) for kind in _OWN_TEXT},
    "inkling_mm_model": CompositeModel("inkling_text", *_INNER),
    "lfm2_vl": CompositeModel("lfm2", *_INNER),
    **dict.fromkeys(
        ("idefics3", "smolvlm"), CompositeModel("llama", "model.text_model", "lm_head", silent=True)
    ),
    "internvl": CompositeModel("qwen2", *_INNER, differ=True),
    "interns1": CompositeModel("qwen3", *_INNER),
    "intern_s2_preview": CompositeModel("qwen3_5_moe_text", *_INNER),
    "internvl_chat": CompositeModel("", *_SEPARATE, at=("llm_config",)),
    "kimi_k25": CompositeModel("deepseek_v3", *_SEPARATE, differ=True),
    "kimi_k3": CompositeModel("kimi_linear", *_SEPARATE),
    "kimi_vl": CompositeModel("deepseek_v3", *_SEPARATE),
    "lighton_ocr": CompositeModel("qwen3", *_INNER, differ=True),
    "llama4": CompositeModel("llama4_text", *_SEPARATE),
    **dict.fromkeys(
        ("llava", "llava_next"), CompositeModel("llama", *_SEPARATE, silent=True, text_ties=True)
    ),
    "llava_onevision": CompositeModel("qwen2", *_SEPARATE, text_ties=True),
    **dict.fromkeys(("minicpmo", "minicpmv"), CompositeModel("", "llm.model", "llm.lm_head")),
    **dict.fromkeys(("minicpmv4_6", "minicpmv4_7"), CompositeModel("qwen3_5_text", *_INNER)),
    "minimax_m3": CompositeModel("minimax_m3_vl_text", *_SEPARATE),
    "minimax_m3_vl": CompositeModel("minimax_m3_vl_text", *_SEPARATE),
    "mistral3": CompositeModel("mistral", *_SEPARATE, differ=True),
    "mllama": CompositeModel("mllama_text_model", *_INNER),
    **dict.fromkeys(
        ("NemotronH_Nano_VL_V2", "NemotronH_Nano_Omni_Reasoning_V3"),
        CompositeModel("nemotron_h", *_NEMOTRON, at=("llm_config",)),
    ),
    "nemotron_h_omni": CompositeModel("nemotron_h", *_NEMOTRON),
    "paddleocr_vl": CompositeModel("ernie4_5", *_PLAIN),
    "paligemma": CompositeModel("gemma", *_INNER, sees_images=True, silent=True),
    "phi4mm": CompositeModel("phi3", *_PLAIN),
    "qwen2_5_omni": CompositeModel("qwen2_5_omni_text", *_THINKER, at=_THINKER_KEYS),
    "qwen2_5_vl": CompositeModel("qwen2_5_vl_text", *_PLAIN),
    "qwen2_vl": CompositeModel("qwen2_vl_text", *_PLAIN),
    "qwen3_omni_moe": CompositeModel("qwen3_omni_moe_text", *_THINKER, at=_THINKER_KEYS),
    "step3_vl": CompositeModel("step3_text", *_PLAIN),
    "step3p7": CompositeModel("step3p5", *_PLAIN),
    "voxtral": CompositeModel("llama", *_SEPARATE),
}
"""By model type; some text parts are known only to be refused by name. Source: configurations of
transformers 5.23; minimax_m3 is AIConfigurator's name of the text part of minimax_m3_vl, and
kimi_k3 is read as in vllm 0.33.0. Not in transformers: kimi_vl (vllm 0.33.0,
vllm/transformers_utils/configs/
kimi_vl.py), dots_ocr and internvl_chat (sglang 0.5.23, sglang/srt/configs/dots_ocr.py and
internvl.py:278-340), deepseek_v41 (deepseek_v41.py there), NVIDIA's two names of nemotron_h_omni
(nano_nemotron_vl.py there). A text that ties its head: LlavaConfig of transformers 5.23;
LlavaForConditionalGeneration of vllm 0.33.0 takes its text's."""

_EQUIVALENT_TYPES = {
    "AXK1": "axk1",
    "exaone4_5_text": "exaone4",
    "gemma4_unified_text": "gemma4_text",
    "hunyuan_vl_text": "hunyuan_v1_dense",
    "mimo_v2": "mimo_v2_flash",
    "paddleocr_vl_text": "ernie4_5",
    "qwen2_5_omni_text": "qwen2",
    "qwen3_omni_moe_text": "qwen3_moe",
}
"""Model types that compute like another model type, which is the value; most are of text parts.
Source: configurations and modeling files of transformers 5.23; mimo_v2.py:1125 (MiMo-V2.5),
paddleocr_vl.py, qwen2_5_omni_thinker.py and qwen3_omni_moe_thinker.py of vllm 0.33.0, in
vllm/model_executor/models, run the classes of these."""

_RESAVED_KEYS = {
    "deepseek_v4": ("compress_rates", "compress_ratios"),
    "minimax_m3_vl_text": ("index_topk_blocks", "sparse_attention_config"),
    "step3p5": ("per_layer_config", "moe_num_experts"),
}
"""By model type, a key that only files resaved by transformers 5.23 have, and a key of the
published file that they lack."""


class TextPart(NamedTuple):
    """The keys of a model's text part; `notes` describe values that the file leaves out.

    `outer` are the keys of the object that holds the text part, or of the file itself. `whole` is
    the composite model, None if the model has no other parts.
    """

    keys: Keys
    outer: Keys
    whole: CompositeModel | None
    notes: tuple[str, ...] = ()


def text_part(file: Path) -> TextPart:
    """Return the keys of the text part of a config.json, or of a GGUF file.

    Keys have their usual names even if the model type has its own. The keys of a composite model
    for dtype, tied embeddings and quantisation apply to the text part.

    Raises
    ------
    ConfigError
        `read_values` refuses the file, it has no model type, or its parts are not understood.
    """
    values = read_values(file)
    outer = Keys(file, values)
    kind = outer.text("model_type")
    present_parts = [part for part in _PARTS if outer.has(part)]
    whole, within = COMPOSITES.get(kind), ""
    if whole is None and present_parts:
        raise outer.wrong(
            present_parts[0],
            f"is a part of {kind!r:.40}, a model of several parts that is not read",
            "Save the part that decodes text as a file of its own, and give that",
        )
    notes: list[str] = []
    if whole and present_parts:
        if present_parts != [whole.at[0]]:
            raise outer.wrong(present_parts[-1], "is not where this model type has its text")
        outer, values = _within(outer, whole)
        within = "".join(f"{key}." for key in whole.at)
    elif whole:
        values = {**values, "model_type": whole.text or text_type(outer)}
    if whole and whole.differ and values.get("tie_word_embeddings") is None:
        notes.append(
            "tie_word_embeddings is missing: an LM head is counted, as published checkpoints and "
            f"engines have it, though the class of {kind} ties it to the embedding"
        )
    text = Keys(file, values, within)
    if text.has("quantization_config") and not (text.has("dtype") or text.has("torch_dtype")):
        values["dtype"] = "bfloat16"
        notes.append("dtype is missing: bfloat16, as engines assume beside quantised weights")
    section = values.get("quantization_config")
    if isinstance(section, dict) and section.get("kv_cache_scheme") == "static":
        notes.append(
            "kv_cache_scheme is static: engines cache in the element type all the same, unless an "
            "option such as --kv-dtype float8 says otherwise"
        )
    own_type = text.text("model_type")
    resaved_key, published_key = _RESAVED_KEYS.get(own_type, ("", ""))
    if resaved_key and text.has(resaved_key) and not text.has(published_key):
        raise text.wrong(
            resaved_key,
            f"replaces {published_key}: transformers has saved the file again",
            "Give the config.json that was published with the model",
        )
    keys = with_usual_names(file, values, own_type, within)
    as_type = "deepseek" if _without_latents(keys) else _EQUIVALENT_TYPES.get(own_type, own_type)
    keys = keys.replaced("model_type", as_type)
    return TextPart(keys, outer, whole, tuple(notes))


def _without_latents(keys: Keys) -> bool:
    """Return whether a file of DeepSeek V2's type has the attention of DeepSeek's first MoE (OCR).

    Source: vllm 0.33.0, vllm/model_executor/models/deepseek_v2.py:1280-1288 (use_mha).
    """
    dims = [keys.values.get(key) for key in ("qk_nope_head_dim", "qk_rope_head_dim")]
    return keys.is_text("model_type", "deepseek_v2") and dims == [0, 0]


def _within(outer: Keys, whole: CompositeModel) -> tuple[Keys, dict[str, Any]]:
    """Return the object that holds the text part, and the values of the text part.

    The values include defaults and those that outer objects give for it.
    """
    if not outer.empty("use_llm_lora"):
        raise outer.wrong("use_llm_lora", "adds adapters to its text, which are not read")
    inherited = dict[str, Any]()
    for key in whole.at:
        inherited = {name: outer.values[name] for name in _OUTER if outer.has(name)} | inherited
        holder, outer = outer, outer.inner(key)
    own = outer.values
    text = {"model_type": whole.text or None, **own, **inherited}
    if whole.text_ties and own.get("tie_word_embeddings") is True:
        text["tie_word_embeddings"] = True
    kind = text["model_type"]
    sizes = _TEXT_DEFAULTS.get(kind, {}) if whole.silent and isinstance(kind, str) else {}
    return holder, {**sizes, **text}
