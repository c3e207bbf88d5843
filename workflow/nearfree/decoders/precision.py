"""Reads the precision of a checkpoint from its config files."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import structs

from nearfree.core.precision import FORMATS, PLAIN, Dtype
from nearfree.decoders.config_file import config_file, dtype_key
from nearfree.decoders.gguf_files.config import read_values
from nearfree.decoders.keys import Keys, read_object
from nearfree.decoders.stored.precision import StoredPrecision
from nearfree.decoders.stored.quantisation import METHODS, method_of, read_quantised
from nearfree.decoders.stored.quantised import Quantised
from nearfree.decoders.stored.schemes import make_scheme, weight_only
from nearfree.errors import ConfigError, Refusal, Refusals, RefusedError

_SECTIONS = ("quantization_config", "compression_config")
_MODELOPT_FILE = "hf_quant_config.json"
_OTHER_FILES = ("quantize_config.json", "quant_config.json")
"""Files in which GPTQ and AWQ describe a quantisation that config.json may lack."""
CONFIG_FILES = ("config.json", _MODELOPT_FILE, *_OTHER_FILES)
"""The files of a model's folder that are read or looked for."""
_TEXT = ("text_config", "llm_config", "thinker_config")

_V4, _FP8_CACHE = "deepseek_v4", ("deepseek_v4", "deepseek_ref")
"""DeepSeek V4, and the model types by whose names it goes, whose cache is in FP8 by default: vllm
0.32.0, vllm/models/deepseek_v4/attention.py:107-121 (FlashMLA's layout takes no other)."""


def read_precision(path: Path) -> StoredPrecision:
    """Return how a checkpoint is stored, from its config.json and its hf_quant_config.json.

    Raises
    ------
    ConfigError
        A file cannot be read.
    RefusedError
        A method of quantisation is not read, engines do not accept a value, sections differ, or no
        file gives the dtype of unquantised weights. The error gives every reason.
    """
    file = config_file(path)
    values = read_values(file)
    keys, errors = Keys(file, values), Refusals()
    sections = errors.read(lambda: [*_sections(file, values), *_modelopt_section(file)], [])
    _check_elsewhere(keys, sections, errors)
    default: Dtype = "bfloat16"
    plain = errors.read(lambda: _plain_dtype(keys, sections), default)
    read = list[tuple[Keys, Quantised]]()
    for section in sections:
        with errors.collect():
            read.append((section, read_quantised(section, plain)))
    quantised = read[0][1] if read else Quantised()
    product_refusals = _check_sections_agree(read, file, errors)
    with errors.collect():
        quantised = _experts(keys, sections, quantised)
    errors.check()
    kv = _widest([quantised.kv, *(other.kv for _, other in read[1:])])
    if kv is None and any(keys.is_text("model_type", name) for name in _FP8_CACHE):
        kv = "float8"
    refusals = tuple(dict.fromkeys([*quantised.refusals, *product_refusals]))
    quantised = structs.replace(quantised, kv=kv, refusals=refusals)
    return StoredPrecision(file=str(file), plain=plain, quantised=quantised)


def _check_sections_agree(
    read: Sequence[tuple[Keys, Quantised]], file: Path, errors: Refusals
) -> list[Refusal]:
    """Compare each further section with the first; return why products are not known.

    A difference in how weights are stored is added to `errors`, too.
    """
    refusals = list[Refusal]()
    for section, other in read[1:]:
        first_section, first = read[0]
        if section.path != file:
            first = first.modelopt_part or first
        different = _differ(first, other)
        if different:
            what = ", ".join(_PARTS[part] for part in different)
            why = f"differs from {first_section.path.name} in {what}"
            error = section.wrong("quant_algo", why, "Leave out the section that is wrong")
            if different == ["kv"]:
                error = section.wrong(CACHE, why, _NAME_CACHE)
            if _differ(_as_stored(first), _as_stored(other)):
                errors.add(error)
            refusals += error.refusals
        refusals += other.refusals
    return refusals


CACHE = "kv_cache_quant_algo"
"""The end of the key of a refusal that the user can settle by naming the dtype of the cache."""
_NAME_CACHE = (
    "Name it, such as --kv-dtype float8: vLLM reads it from config.json, SGLang from this file if "
    "algorithms are mixed and config.json does not give it"
)


def _differ(first: Quantised, other: Quantised) -> list[str]:
    """Return the fields in which two descriptions of a quantisation differ."""
    return [part for part in _PARTS if getattr(first, part) != getattr(other, part)]


def _as_stored(quantised: Quantised) -> Quantised:
    """Return a quantisation of the weights only, without activations and cache."""
    return structs.replace(
        quantised,
        kv=None,
        others=quantised.others and weight_only(quantised.others),
        routed=quantised.routed and weight_only(quantised.routed),
        named=tuple((names, weight_only(scheme)) for names, scheme in quantised.named),
    )


def _widest(dtypes: list[Dtype | None]) -> Dtype | None:
    """Return the widest dtype of the cache; None, the unquantised dtype, counts as the widest."""
    if None in dtypes:
        return None
    return max(dtypes, key=lambda dtype: FORMATS[str(dtype)].element_bytes)


def _experts(keys: Keys, sections: list[Keys], quantised: Quantised) -> Quantised:
    """Return the quantisation completed by `expert_dtype`, the format of DeepSeek V4's experts.

    fp4 is MXFP4, whose products have MXFP8 activations. Source: DeepseekV4FP8Config of vllm 0.33.0.
    """
    levels = [level for level in (keys, *map(keys.inner, _TEXT)) if level.has("expert_dtype")]
    fp8 = bool(sections) and method_of(sections[0]) == "fp8"
    v4 = keys.is_text("model_type", _V4)
    if fp8 and quantised.routed and not v4:
        raise sections[0].wrong("moe_quant_algo", "is not read for this model type", _PUBLISHED)
    if not levels:
        if fp8 and v4:
            raise keys.wrong("expert_dtype", "is missing, and engines default to fp4", _EXPERTS)
        return quantised
    level = levels[0]
    if not (fp8 and v4):
        raise level.wrong("expert_dtype", "is not read for this model or quantisation", _PUBLISHED)
    if level.text("expert_dtype") not in ("fp4", "fp8"):
        raise level.wrong("expert_dtype", "is none of fp4, fp8")
    if level.is_text("expert_dtype", "fp8"):
        if quantised.routed:
            raise level.wrong("expert_dtype", "stands beside moe_quant_algo")
        return quantised
    routed = quantised.routed or make_scheme("mxfp4", "float8", group=32)
    return structs.replace(quantised, routed=routed)


_EXPERTS = "Add fp4 or fp8, as the checkpoint's experts are stored"
_PARTS = {
    "kv": "the dtype of the cache",
    "others": "the scheme",
    "routed": "the scheme of experts",
    "named": "the schemes by name",
    "ignored": "what is left out",
    "head": "the LM head",
    "experts": "whether experts are quantised",
}


def _sections(file: Path, values: dict[str, Any]) -> Iterator[Keys]:
    """Yield the sections on quantisation, at any level of nesting."""
    levels = [("", values)]
    for within, level in levels:
        for key, value in level.items():
            if key in _SECTIONS and value is not None:
                yield Keys(file, level, within).inner(key)
            elif isinstance(value, dict):
                levels.append((f"{within}{key}.", value))


def _modelopt_section(file: Path) -> Iterator[Keys]:
    """Yield ModelOpt's section of the hf_quant_config.json beside a file, if there is one.

    Source: convert_hf_config.py of modelopt 0.40.0.
    """
    modelopt_file = file.with_name(_MODELOPT_FILE)
    if modelopt_file.exists() or modelopt_file.is_symlink():
        try:
            keys = Keys(modelopt_file, read_object(modelopt_file))
        except ConfigError as error:
            reason = error.what.removeprefix(f"{modelopt_file} ")
            remedy = "Give ModelOpt's own file, or remove it if nothing is quantised"
            raise RefusedError([Refusal(str(modelopt_file), "", reason, remedy)]) from error
        if not keys.has("quantization"):
            raise keys.wrong("quantization", "is missing", "Give ModelOpt's own file")
        yield keys.inner("quantization")


def _check_elsewhere(keys: Keys, sections: list[Keys], errors: Refusals) -> None:
    """Refuse sections and files that describe a quantisation and are not read."""
    if keys.has("quantization"):
        errors.add(keys.wrong("quantization", "is a section that is not read", _PUBLISHED))
    for name in _OTHER_FILES:
        file = keys.path.with_name(name)
        if not sections and file.exists():
            reason = "says that weights are quantised, and config.json does not"
            remedy = "Write what it says as quantization_config into config.json"
            errors.add(RefusedError([Refusal(str(file), "", reason, remedy)]))


_PUBLISHED = "Give a checkpoint whose quantization_config says all of it"


def _plain_dtype(keys: Keys, sections: list[Keys]) -> Dtype:
    """Return the dtype of unquantised weights."""
    levels_by_dtype, inner_levels = dict[str, Keys](), [keys.inner(part) for part in _TEXT]
    for level in (keys, *inner_levels, inner_levels[-1].inner("text_config")):
        for key in ("dtype", "torch_dtype"):
            if level.has(key):
                dtype = level.text(key)
                if dtype not in PLAIN:
                    raise level.wrong(key, f"is none of {', '.join(PLAIN)}")
                levels_by_dtype[dtype] = level
    if len(levels_by_dtype) > 1:
        raise keys.wrong(
            "dtype", f"differs between levels: {', '.join(levels_by_dtype)}", "Leave one out"
        )
    defaults = {METHODS[method_of(section)].usual for section in sections}
    dtypes = {*levels_by_dtype} or defaults - {None}
    if not dtypes:
        dtype_key(keys)
    return next(dtype for dtype in PLAIN if dtype in dtypes)
