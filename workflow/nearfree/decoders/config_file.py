"""The decoder of a Hugging Face config.json, by name or path; unknown features are refused."""

import re
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

from msgspec import UNSET, structs

from nearfree.core.names import NAME
from nearfree.core.precision import Dtype
from nearfree.decoders.attention_kinds import Kind
from nearfree.decoders.decoder import (
    Decoder,
    Ffn,
    check_layer_types,
    head_sizes,
    head_width,
    main_kind,
)
from nearfree.decoders.draft_heads import (
    drafter_keys,
    is_head,
    names_head,
    states_of,
    vocabulary_of,
)
from nearfree.decoders.keys import Keys
from nearfree.decoders.layouts.families import FAMILIES, ONE_POSITION, family, kinds_of
from nearfree.decoders.layouts.layout import Layout
from nearfree.decoders.snapshots import snapshot_of
from nearfree.decoders.text_part import text_part
from nearfree.errors import ConfigError, Refusals, RefusedError

_DTYPES: dict[str, Dtype] = {
    dtype: dtype for dtype in get_args(Dtype) if dtype in ("bfloat16", "float16", "float32")
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
_BLOCKS = (
    "says that it drafts a block of tokens in one run, from another model's states: not read",
    "Give the model that it drafts for, and what a draft costs by --draft-cost",
)
_DUAL_CHUNK = (
    "says that attention sees chunks of positions by kernels of its own, which are not read",
    "Take the key out of a copy, by which every engine attends to all positions",
)
"""Sources: sglang 0.5.16, sglang/srt/server_args.py:5056-5057 (a backend of its own); vllm 0.33.0,
vllm/model_executor/models/qwen2.py:190-206, of whose backends none takes what it passes there."""
_REFUSED = {
    "draft_vocab_size": _DRAFTER,
    "dflash_config": _BLOCKS,
    "dual_chunk_attention_config": _DUAL_CHUNK,
    "layers_block_type": _HYBRID,
    "hybrid_override_pattern": _HYBRID,
    "full_attention_interval": _HYBRID,
    "linear_attn_config": _HYBRID,
    "layer_group_size": _HYBRID,
    "mamba_d_state": _BESIDE,
}
"""Keys that change a forward if present, whatever the model type. Those in `_LATENT_KEYS` do so
only for model types whose layers are not read one by one."""

_BIDIRECTIONAL = "use_bidirectional_attention"
"""Gemma 4's key; "vision" means that all positions of an image attend to each other."""
_NAME_CHARACTERS = 80
"""Length of the longest name of a model."""


def read_decoder(path: Path) -> Decoder:
    """Return the decoder that a config.json describes, without running any code.

    Of a composite model it is the part that decodes text.

    Parameters
    ----------
    path
        The file, or the folder that holds it as config.json. The decoder's name is that of the
        file, or of its folder if the file is called config.json.

    Raises
    ------
    ConfigError
        The file cannot be read; a key is missing or has a value that no model has; or the forward
        is not understood: the model type or a kind of layer is not read. The error gives all
        reasons.
    """
    file = config_file(path)
    part, refusals = text_part(file), Refusals()
    keys = part.keys
    kind = str(keys.values.get("model_type"))
    rules = FAMILIES.get(kind)
    alike = rules is None or rules.window is not None
    for key, (reason, remedy) in (_REFUSED | (_LATENT_KEYS if alike else {})).items():
        is_read = kind in ONE_POSITION or (rules and key in rules.states)
        with refusals.collect():
            if keys.has(key) and not is_read:
                raise keys.wrong(key, reason, remedy)
    with refusals.collect():
        if names_head(keys):
            raise keys.wrong("architectures", *_DRAFTER)
    with refusals.collect():
        if keys.flag("is_encoder_decoder"):
            raise keys.wrong("is_encoder_decoder", "says that it is no decoder", "Give a decoder")
    decoder = _decoder(keys, file_name(file), refusals)
    images = keys.values.get(_BIDIRECTIONAL) == "vision"
    sees_images = images or (part.whole and part.whole.sees_images)
    return structs.replace(decoder, sees_images=True) if sees_images else decoder


def read_drafter(path: Path) -> Decoder:
    """Return the decoder of a drafter: a drafter's head, or a model as in `read_decoder`.

    The decoder of a head has the layer and the LM head that it runs, and `states`.

    Raises
    ------
    ConfigError
        As for `read_decoder`; or the head is of a form that is not read. The error gives all
        reasons.
    """
    file = config_file(path)
    keys, refusals = drafter_keys(file), Refusals()
    if not is_head(keys):
        return read_decoder(path)
    states = vocabulary = None
    with refusals.collect():
        states, vocabulary = states_of(keys), vocabulary_of(keys)
    layer = _decoder(keys.replaced("model_type", "llama"), file_name(file), refusals)
    return structs.replace(layer, states=states, vocabulary=vocabulary)


def config_file(path: Path) -> Path:
    """Return the file at a path, or for a folder the model file that it holds.

    In a folder that is config.json, or if it has none, its only GGUF file.

    Raises
    ------
    ConfigError
        The folder has no config.json and several GGUF files.
    """
    try:
        if not path.is_dir():
            return path
        config = path / "config.json"
        gguf_files = [] if config.exists() else sorted(path.glob("*.gguf"))
    except OSError:  # reading the file will raise the error with its reason
        return path
    if len(gguf_files) > 1:
        raise ConfigError(
            f"{path} holds {len(gguf_files)} GGUF files and no config.json",
            remedy=f"Name one of them, such as {gguf_files[0].name}",
        )
    return gguf_files[0] if gguf_files else config


def _decoder(keys: Keys, name: str, refusals: Refusals) -> Decoder:
    rules = refusals.read(lambda: family(keys), None)
    if rules is None:
        with refusals.collect():
            check_layer_types(keys, None)
        raise RefusedError(refusals.found)
    readers: dict[str, Callable[[], Any]] = {
        "dtype": lambda: _dtype(keys),
        "d_model": lambda: keys.whole("hidden_size"),
        "layers": lambda: keys.whole("num_hidden_layers"),
        "vocabulary": lambda: keys.whole("vocab_size"),
        **(_heads(keys, rules) if rules.window else _kinds(keys, rules)),
        "ffn": lambda: rules.ffn(keys, keys.whole("num_hidden_layers")),
        "altup": lambda: rules.altup(keys) if rules.altup else UNSET,
    }
    fields: dict[str, Any] = {}
    for field, reader in readers.items():
        with refusals.collect():
            fields[field] = reader()
    refusals.check()
    ffn: Ffn = fields.pop("ffn")
    kinds: tuple[Kind, ...] = fields.pop("kinds", ())
    if kinds:
        fields |= head_sizes(main_kind(kinds)) | {"kinds": kinds}
    input_width = rules.layer_inputs and keys.whole(rules.layer_inputs, least=0, default=0)
    in_blocks = rules.residual_block and keys.has(rules.residual_block)
    return Decoder(
        name=name,
        model_type=keys.text("model_type"),
        d_ff=ffn.d_ff,
        moe_layers=len(ffn.moe_at),
        experts=ffn.experts,
        beside=ffn.beside or UNSET,
        ffn_layers=UNSET if ffn.dense is None else ffn.dense,
        ffn_widths=ffn.widths or UNSET,
        gated=UNSET if ffn.gated else False,
        layer_inputs=input_width or UNSET,
        streams=keys.whole(rules.streams) if rules.streams else UNSET,
        residual_block=keys.whole(rules.residual_block) if in_blocks else UNSET,
        **fields,
    )


def _heads(keys: Keys, rules: Layout) -> dict[str, Callable[[], Any]]:
    """Return the readers of the attention that all layers share, by field of `Decoder`."""
    return {
        "heads": lambda: keys.whole("num_attention_heads"),
        "kv_heads": lambda: _kv_heads(keys),
        "head_dim": lambda: keys.whole("head_dim") if rules.says_head_dim else head_width(keys),
        "window": lambda: _window(keys, rules),
    }


def _kinds(keys: Keys, rules: Layout) -> dict[str, Callable[[], Any]]:
    """Return the readers of the attention of layers that differ, by field of `Decoder`."""
    sizes: dict[str, Callable[[], Any]] = {}
    if rules.says_head_dim:
        sizes = {"head_dim": lambda: keys.whole("head_dim"), "kv_heads": lambda: _kv_heads(keys)}
    return sizes | {"kinds": lambda: kinds_of(keys, keys.whole("num_hidden_layers"))}


def _kv_heads(keys: Keys) -> int:
    heads, kv_heads = keys.whole("num_attention_heads"), keys.whole("num_key_value_heads")
    if heads % kv_heads:
        raise keys.wrong("num_key_value_heads", f"does not divide num_attention_heads {heads}")
    return kv_heads


def _window(keys: Keys, rules: Layout) -> int | None:
    window = rules.window and rules.window(keys, keys.whole("num_hidden_layers"))
    check_layer_types(keys, window)
    return window


def dtype_key(keys: Keys) -> str:
    """Return the key of a file's element type, which some published files lack."""
    remedy = "Write the dtype of the checkpoint's weights, such as bfloat16, as dtype into a copy"
    return keys.one_of("dtype", "torch_dtype", remedy=remedy)


def _dtype(keys: Keys) -> Dtype:
    key = dtype_key(keys)
    dtype = keys.text(key)
    if dtype not in _DTYPES:
        raise keys.wrong(key, f"is none of {', '.join(_DTYPES)}")
    return _DTYPES[dtype]


def file_name(file: Path) -> str:
    """Return the name of a file's model: that of the file, or of its folder for a config.json.

    For a snapshot in Hugging Face's cache it is ORG/NAME@COMMIT, with 7 digits of the commit.
    """
    if file.name == "config.json" and (snapshot := snapshot_of(file)):
        return str(snapshot)
    name = (file.name == "config.json" and file.parent.resolve().name) or file.stem
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)[:_NAME_CHARACTERS]


def decoder_names(config_folder: Path) -> list[str]:
    """Return the names of the decoders under a config folder's models/, sorted."""
    paths = (config_folder / "models").glob("*.json")
    return sorted(path.stem for path in paths if re.fullmatch(NAME, path.stem))


def find_file(config_folder: Path, model: str) -> Path:
    """Return the file of a model by its name, or the given file or folder.

    Parameters
    ----------
    model
        A path, or a name such as Qwen3-8B: case is ignored, and `-` and `.` stand for `_`.

    Raises
    ------
    ConfigError
        It is neither; the error names the nearest names.
    """
    names = decoder_names(config_folder)
    normalised = re.sub(r"[-.]", "_", model.lower())
    if normalised in names:
        return config_folder / "models" / f"{normalised}.json"
    if _exists(model):
        return Path(model)
    near = get_close_matches(normalised.rpartition("/")[2][:80], names, n=3)
    known = f"Nearest are {', '.join(near)}" if near else f"Known are {', '.join(names) or 'none'}"
    raise ConfigError(
        f"no model {model!r:.120}: neither a name in {config_folder}/models nor a file",
        remedy=f"{known}; or give the path of a config.json or of a GGUF file",
    )


def _exists(model: str) -> bool:
    try:
        return Path(model).exists()
    except (OSError, ValueError):  # not a valid path on this system
        return False
