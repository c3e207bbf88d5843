"""Hugging Face's config.json as a decoder: what is not understood is refused by name."""

import re
from pathlib import Path
from typing import get_args

from nearfree.core.setting import Dtype
from nearfree.decoders.decoder import Decoder
from nearfree.decoders.families import family
from nearfree.decoders.json_file import read_object
from nearfree.decoders.keys import Keys
from nearfree.decoders.window import check_layer_types

_DTYPES: dict[str, Dtype] = {
    each: each for each in get_args(Dtype) if each in ("bfloat16", "float16", "float32")
}
_QUANTISED = ("says that weights are quantised", "Give the config of the unquantised model")
_PARTS = (
    "says that the model has several parts",
    "Save the part that decodes text as a file of its own, and give that",
)
_LATENT = (
    "says that attention is multi-head latent attention (MLA)",
    "Give a model with grouped-query attention",
)
_HYBRID = (
    "says that some layers have another kind of attention or none",
    "Give a model with the same attention in every layer",
)
_REFUSED = {
    "quantization_config": _QUANTISED,
    "compression_config": _QUANTISED,
    "text_config": _PARTS,
    "llm_config": _PARTS,
    "thinker_config": _PARTS,
    "kv_lora_rank": _LATENT,
    "q_lora_rank": _LATENT,
    "layers_block_type": _HYBRID,
    "hybrid_override_pattern": _HYBRID,
    "full_attention_interval": _HYBRID,
    "linear_attn_config": _HYBRID,
    "layer_group_size": _HYBRID,
}
"""Keys that, given, change what a forward does, whatever the model type."""

_MOST_NAME = 80


def read_decoder(path: Path) -> Decoder:
    """Return the decoder that a config.json describes, without running any code.

    Parameters
    ----------
    path
        The file, or the folder that holds it as config.json. The decoder has the file's name, or
        its folder's if it is called config.json.

    Raises
    ------
    ConfigError
        It cannot be read; a key is missing or has a value that no model has; or the model's
        forward is none that is understood: another model type, quantised weights, several parts,
        latent attention, or attention that differs between layers.
    """
    file = config_file(path)
    keys = Keys(file, read_object(file))
    for key, (why, remedy) in _REFUSED.items():
        if keys.has(key):
            raise keys.wrong(key, why, remedy)
    if keys.flag("is_encoder_decoder"):
        raise keys.wrong("is_encoder_decoder", "says that it is no decoder", "Give a decoder")
    return _decoder(keys, _name(file))


def config_file(path: Path) -> Path:
    """Return the file of a path: itself, or config.json in the folder that it is."""
    try:
        return path / "config.json" if path.is_dir() else path
    except OSError:  # reading it will say why
        return path


def _decoder(keys: Keys, name: str) -> Decoder:
    rules = family(keys)
    layers = keys.whole("num_hidden_layers")
    window = rules.window(keys, layers)
    check_layer_types(keys, layers, window)
    ffn = rules.ffn(keys, layers)
    heads, kv_heads = keys.whole("num_attention_heads"), keys.whole("num_key_value_heads")
    if heads % kv_heads:
        raise keys.wrong("num_key_value_heads", f"does not divide num_attention_heads {heads}")
    return Decoder(
        name=name,
        model_type=keys.text("model_type"),
        dtype=_dtype(keys),
        d_model=keys.whole("hidden_size"),
        layers=layers,
        vocabulary=keys.whole("vocab_size"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=_head_dim(keys, heads, required=rules.says_head_dim),
        d_ff=ffn.d_ff,
        moe_layers=ffn.moe_layers,
        experts=ffn.experts,
        window=window,
    )


def _head_dim(keys: Keys, heads: int, *, required: bool) -> int:
    if required or keys.has("head_dim"):
        return keys.whole("head_dim")
    d_model = keys.whole("hidden_size")
    if d_model % heads:
        raise keys.wrong(
            "hidden_size", f"is no multiple of num_attention_heads {heads}", "Add head_dim"
        )
    return d_model // heads


def _dtype(keys: Keys) -> Dtype:
    key = keys.one_of("dtype", "torch_dtype")
    given = keys.text(key)
    if given not in _DTYPES:
        raise keys.wrong(key, f"is none of {', '.join(_DTYPES)}")
    return _DTYPES[given]


def _name(file: Path) -> str:
    name = (file.name == "config.json" and file.resolve().parent.name) or file.stem
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)[:_MOST_NAME]
