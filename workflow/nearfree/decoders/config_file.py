"""Hugging Face's config.json as a decoder, by name or path: unknown features are refused."""

import re
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

from msgspec import structs

from nearfree.core.names import NAME
from nearfree.core.precision import Dtype
from nearfree.decoders.attention_kinds import Kind
from nearfree.decoders.decoder import (
    Decoder,
    Ffn,
    check_layer_types,
    first_said,
    head_width,
    said_of,
)
from nearfree.decoders.draft_heads import (
    as_layer,
    drafter_keys,
    is_head,
    names_head,
    states_of,
    vocabulary_of,
)
from nearfree.decoders.families import FAMILIES, ONE_POSITION, Family, family, kinds_of
from nearfree.decoders.keys import Keys
from nearfree.decoders.snapshots import snapshot_of
from nearfree.decoders.text_part import text_part
from nearfree.errors import ConfigError, Refusals, RefusedError

_DTYPES: dict[str, Dtype] = {
    each: each for each in get_args(Dtype) if each in ("bfloat16", "float16", "float32")
}
_LATENT = (
    "says that attention has latents, which are not read of this model type",
    "Give a model of a type that has them, such as deepseek_v3",
)
_HYBRID = (
    "says that some layers keep a state in place of attention, or have neither",
    "Give a model whose layers all attend",
)
_BESIDE = ("says that some layers keep a state, too", _HYBRID[1])
_LATENT_KEYS = dict.fromkeys(("kv_lora_rank", "q_lora_rank"), _LATENT)
_DRAFTER = (
    "says that it is the head of a drafter, which reads the states of another model",
    "Give the model that it drafts for; the head is what `nearfree schedule --drafter` takes",
)
_REFUSED = {
    "draft_vocab_size": _DRAFTER,
    "layers_block_type": _HYBRID,
    "hybrid_override_pattern": _HYBRID,
    "full_attention_interval": _HYBRID,
    "linear_attn_config": _HYBRID,
    "layer_group_size": _HYBRID,
    "mamba_d_state": _BESIDE,
}
"""Keys that, given, change what a forward does, whatever the model type; those of a latent do so
where its layers are not read one by one."""

_BOTH_WAYS = "use_bidirectional_attention"
"""The key that is "vision" where all positions of an image attend to each other: Gemma 4's."""
_MOST_NAME = 80


def read_decoder(path: Path) -> Decoder:
    """Return the decoder that a config.json describes, without running any code.

    Of a model of several parts it is the one that decodes text.

    Parameters
    ----------
    path
        The file, or the folder that holds it as config.json. The decoder has the file's name, or
        its folder's if it is called config.json.

    Raises
    ------
    ConfigError
        It cannot be read; a key is missing or has a value that no model has; or the model's
        forward is none that is understood: another model type, or layers of a kind that is not
        read. All reasons are given at once.
    """
    file = config_file(path)
    part, refusals = text_part(file), Refusals()
    keys = part.keys
    kind = str(keys.values.get("model_type"))
    rules = FAMILIES.get(kind)
    uniform = rules is None or rules.window is not None
    for key, (why, remedy) in (_REFUSED | (_LATENT_KEYS if uniform else {})).items():
        read = kind in ONE_POSITION or (rules and key in rules.states)
        with refusals.collect():
            if keys.has(key) and not read:
                raise keys.wrong(key, why, remedy)
    with refusals.collect():
        if names_head(keys):
            raise keys.wrong("architectures", *_DRAFTER)
    with refusals.collect():
        if keys.flag("is_encoder_decoder"):
            raise keys.wrong("is_encoder_decoder", "says that it is no decoder", "Give a decoder")
    decoder = _decoder(keys, file_name(file), refusals)
    sees = (part.whole and part.whole.sees_images) or keys.values.get(_BOTH_WAYS) == "vision"
    return structs.replace(decoder, sees_images=True) if sees else decoder


def read_drafter(path: Path) -> Decoder:
    """Return the decoder of what drafts for a model: of a head, or of a model as `read_decoder`.

    A head's decoder has the layer and the LM head that it runs, and `states`.

    Raises
    ------
    ConfigError
        As `read_decoder`; or the head is of a form that is not read. All reasons are given at once.
    """
    file = config_file(path)
    keys, refusals = drafter_keys(file), Refusals()
    if not is_head(keys):
        return read_decoder(path)
    states = vocabulary = None
    with refusals.collect():
        states, vocabulary = states_of(keys), vocabulary_of(keys)
    layer = _decoder(as_layer(keys), file_name(file), refusals)
    return structs.replace(layer, states=states, vocabulary=vocabulary)


def config_file(path: Path) -> Path:
    """Return the file of a path: itself, or what the folder that it is holds.

    That is config.json, or the only GGUF file where there is none.

    Raises
    ------
    ConfigError
        The folder has no config.json and several GGUF files.
    """
    try:
        if not path.is_dir():
            return path
        said = path / "config.json"
        found = [] if said.exists() else sorted(path.glob("*.gguf"))
    except OSError:  # reading it will say why
        return path
    if len(found) > 1:
        raise ConfigError(
            f"{path} holds {len(found)} GGUF files and no config.json",
            remedy=f"Name one of them, such as {found[0].name}",
        )
    return found[0] if found else said


def _decoder(keys: Keys, name: str, refusals: Refusals) -> Decoder:
    rules = None
    with refusals.collect():
        rules = family(keys)
    if rules is None:
        with refusals.collect():
            check_layer_types(keys, None)
        raise RefusedError(refusals.found)
    parts: dict[str, Callable[[], Any]] = {
        "dtype": lambda: _dtype(keys),
        "d_model": lambda: keys.whole("hidden_size"),
        "layers": lambda: keys.whole("num_hidden_layers"),
        "vocabulary": lambda: keys.whole("vocab_size"),
        **(_heads(keys, rules) if rules.window else _kinds(keys, rules)),
        "ffn": lambda: rules.ffn(keys, keys.whole("num_hidden_layers")),
    }
    read: dict[str, Any] = {}
    for part, of in parts.items():
        with refusals.collect():
            read[part] = of()
    refusals.check()
    ffn: Ffn = read.pop("ffn")
    kinds: tuple[Kind, ...] = read.pop("kinds", ())
    if kinds:
        read |= said_of(first_said(kinds)) | {"kinds": kinds}
    if ffn.beside:
        read["beside"] = True
    if ffn.dense is not None:
        read["ffn_layers"] = ffn.dense
    if ffn.widths:
        read["ffn_widths"] = ffn.widths
    if not ffn.gated:
        read["gated"] = False
    width = rules.layer_inputs and keys.whole(rules.layer_inputs, least=0, default=0)
    if width:
        read["layer_inputs"] = width
    if rules.streams:
        read["streams"] = keys.whole(rules.streams)
    if rules.residual_block and keys.has(rules.residual_block):
        read["residual_block"] = keys.whole(rules.residual_block)
    return Decoder(
        name=name,
        model_type=keys.text("model_type"),
        d_ff=ffn.d_ff,
        moe_layers=len(ffn.moe_at),
        experts=ffn.experts,
        **read,
    )


def _heads(keys: Keys, rules: Family) -> dict[str, Callable[[], Any]]:
    """Return what reads the attention that all layers have."""
    return {
        "heads": lambda: keys.whole("num_attention_heads"),
        "kv_heads": lambda: _kv_heads(keys),
        "head_dim": lambda: keys.whole("head_dim") if rules.says_head_dim else head_width(keys),
        "window": lambda: _window(keys, rules),
    }


def _kinds(keys: Keys, rules: Family) -> dict[str, Callable[[], Any]]:
    """Return what reads the attention of layers that differ."""
    said: dict[str, Callable[[], Any]] = {}
    if rules.says_head_dim:
        said = {"head_dim": lambda: keys.whole("head_dim"), "kv_heads": lambda: _kv_heads(keys)}
    return said | {"kinds": lambda: kinds_of(keys, keys.whole("num_hidden_layers"))}


def _kv_heads(keys: Keys) -> int:
    heads, kv_heads = keys.whole("num_attention_heads"), keys.whole("num_key_value_heads")
    if heads % kv_heads:
        raise keys.wrong("num_key_value_heads", f"does not divide num_attention_heads {heads}")
    return kv_heads


def _window(keys: Keys, rules: Family) -> int | None:
    window = rules.window and rules.window(keys, keys.whole("num_hidden_layers"))
    check_layer_types(keys, window)
    return window


def dtype_key(keys: Keys) -> str:
    """Return under which key a file says its element type, which some published ones do not."""
    remedy = "Write as dtype into a copy what the checkpoint's weights are in, such as bfloat16"
    return keys.one_of("dtype", "torch_dtype", remedy=remedy)


def _dtype(keys: Keys) -> Dtype:
    key = dtype_key(keys)
    dtype = keys.text(key)
    if dtype not in _DTYPES:
        raise keys.wrong(key, f"is none of {', '.join(_DTYPES)}")
    return _DTYPES[dtype]


def file_name(file: Path) -> str:
    """Return the name of the model of a file: its own, or its folder's if it is config.json.

    That of a snapshot in Hugging Face's cache is ORG/NAME@COMMIT, with 7 digits of the commit.
    """
    if file.name == "config.json" and (snapshot := snapshot_of(file)):
        return str(snapshot)
    name = (file.name == "config.json" and file.parent.resolve().name) or file.stem
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)[:_MOST_NAME]


def decoder_names(config_folder: Path) -> list[str]:
    """Return the names of the decoders under a config folder's models/, sorted."""
    paths = (config_folder / "models").glob("*.json")
    return sorted(path.stem for path in paths if re.fullmatch(NAME, path.stem))


def find_file(config_folder: Path, model: str) -> Path:
    """Return the file of a model by its name, or the file or folder that is given.

    Parameters
    ----------
    config_folder
        The folder whose models/ holds the named files.
    model
        A name, in which case does not matter and `-` and `.` are `_`, such as Qwen3-8B; or a path.

    Raises
    ------
    ConfigError
        It is neither, with the nearest names.
    """
    names = decoder_names(config_folder)
    plain = re.sub(r"[-.]", "_", model.lower())
    if plain in names:
        return config_folder / "models" / f"{plain}.json"
    if _exists(model):
        return Path(model)
    near = get_close_matches(plain.rpartition("/")[2][:80], names, n=3)
    known = f"Nearest are {', '.join(near)}" if near else f"Known are {', '.join(names) or 'none'}"
    raise ConfigError(
        f"no model {model!r:.120}: neither a name in {config_folder}/models nor a file",
        remedy=f"{known}; or give the path of a config.json or of a GGUF file",
    )


def _exists(model: str) -> bool:
    try:
        return Path(model).exists()
    except (OSError, ValueError):  # no system has such a name
        return False
