"""Quantisation: which method a section of a config file names, and FP8's and MXFP4's own."""

from collections.abc import Callable
from typing import NamedTuple

from msgspec import structs

from nearfree.core.precision import Dtype
from nearfree.decoders.compressed_tensors import compressed_tensors
from nearfree.decoders.few_bits import awq, bitsandbytes, gptq
from nearfree.decoders.keys import Keys
from nearfree.decoders.modelopt import MODELOPT_KEYS, modelopt
from nearfree.decoders.names import Names, read_names
from nearfree.decoders.quantised import Quantised, choice
from nearfree.decoders.schemes import Scheme, block, scheme
from nearfree.errors import Refusals


def _fp8(keys: Keys, plain: Dtype) -> Quantised:
    """Return what `fp8` says: Fp8Config of vllm 0.33.0, FineGrainedFP8Config of transformers."""
    found, products = Refusals(), Refusals()
    for key, known in (("fmt", ("e4m3", "float8_e4m3fn")), ("scale_fmt", ("ue8m0", "float"))):
        if keys.has(key):
            with found.collect():
                choice(keys, key, *known)
    dtype: Dtype = "float8_block" if keys.has("weight_block_size") else "float8"
    rows, group = 1, 0
    with products.collect():
        enters = choice(keys, "activation_scheme", "dynamic", "static")
        if dtype == "float8_block" and enters == "static":
            raise keys.wrong("activation_scheme", "stands beside weight_block_size")
    with found.collect():
        if dtype == "float8_block":
            rows, group = block(keys, "weight_block_size")
    with found.collect():
        first, second = (
            read_names(keys, key, "path") for key in ("ignored_layers", "modules_to_not_convert")
        )
        if first.exact and second.exact and first != second:
            raise keys.wrong("ignored_layers", "differs from modules_to_not_convert")
    routed, part = None, Quantised()
    with found.collect():
        routed, part = _fp4_experts(keys, plain)
    found.check()
    ignored = second if first == Names() else first
    return Quantised(
        kv=part.kv,
        others=scheme(dtype, dtype, group=group, rows=rows),
        routed=routed,
        named=part.named,
        ignored=ignored,
        beside=None if part == Quantised() else part,
        refusals=(*products.found, *part.refusals),
    )


def _fp4_experts(keys: Keys, plain: Dtype) -> tuple[Scheme | None, Quantised]:
    """Return the scheme of experts that ModelOpt made of an FP8 checkpoint's, and what it says.

    What its lists leave out stays FP8. Source: DeepseekV4FP8Config of vllm 0.33.0, which reads
    `moe_quant_algo` alone. Beside `fp8` engines read no `kv_cache_scheme` of AutoFP8, "static", as
    `text_part` notes: sglang 0.5.23, sglang/srt/layers/quantization/fp8.py:349-387.
    """
    if not keys.has("moe_quant_algo"):
        found = Refusals()
        for key in MODELOPT_KEYS.split():
            if not (keys.empty(key) or (key == "kv_cache_scheme" and keys.is_text(key, "static"))):
                found.add(keys.wrong(key, "stands beside no moe_quant_algo", _APART))
        found.check()
        return None, Quantised()
    choice(keys, "moe_quant_algo", "NVFP4")
    part = modelopt(keys, plain) if keys.has("quant_algo") else Quantised()
    routed = scheme("nvfp4", "nvfp4", group=16)
    if part.others or {routed} != {routed, *(each for _, each in part.named)}:
        raise keys.wrong("moe_quant_algo", "differs from quant_algo and quantized_layers")
    return routed, part


_APART = "Leave it out if it changes nothing"


def _fbgemm(keys: Keys, plain: Dtype) -> Quantised:  # noqa: ARG001 (one signature for all)
    """Return what `fbgemm_fp8` says: FBGEMMFp8Config of vllm 0.33.0; a scale an output."""
    ignored = read_names(keys, "modules_to_not_convert", "path")
    return Quantised(others=scheme("float8", "float8"), ignored=ignored)


def _mxfp4(keys: Keys, plain: Dtype) -> Quantised:
    """Return what `mxfp4` says: the routed experts alone, as Mxfp4Config of vllm 0.33.0 has it."""
    ignored = read_names(keys, "modules_to_not_convert", "path")
    return Quantised(routed=scheme("mxfp4", plain, group=32), ignored=ignored)


class Method(NamedTuple):
    """How the section of a `quant_method` is read.

    `keys` are those it may have, besides those that change nothing of a forward; `usual` is what
    is not quantised where a file does not say its dtype.
    """

    read: Callable[[Keys, Dtype], Quantised]
    keys: str
    usual: Dtype | None = None


_SKIPPED = "modules_to_not_convert"
_MODELOPT = Method(modelopt, MODELOPT_KEYS)
METHODS = {
    "fp8": Method(
        _fp8,
        f"activation_scheme weight_block_size ignored_layers {_SKIPPED} fmt scale_fmt "
        f"moe_quant_algo {MODELOPT_KEYS}",
        "bfloat16",
    ),
    "fbgemm_fp8": Method(_fbgemm, f"{_SKIPPED} activation_scale_ub"),
    "compressed-tensors": Method(
        compressed_tensors,
        "config_groups format ignore kv_cache_scheme sparsity_config transform_config",
    ),
    "awq": Method(awq, f"bits w_bit group_size q_group_size zero_point {_SKIPPED} lm_head"),
    "gptq": Method(
        gptq, "bits group_size desc_act sym format dynamic modules_in_block_to_quantize lm_head"
    ),
    "bitsandbytes": Method(
        bitsandbytes,
        "load_in_4bit _load_in_4bit load_in_8bit _load_in_8bit bnb_4bit_quant_type "
        "bnb_4bit_use_double_quant llm_int8_skip_modules",
    ),
    "mxfp4": Method(_mxfp4, _SKIPPED, "bfloat16"),
    "modelopt": _MODELOPT,
    "modelopt_fp4": _MODELOPT,
}
"""By `quant_method`. The `usual` of fp8 is what DeepSeek's and MiniMax's checkpoints hold, that of
mxfp4 the one dtype that Mxfp4Config of vllm 0.33.0 takes."""
_SILENT = {
    "quant_method", "version", "producer", "quantization_status", "global_compression_ratio",
    "meta", "checkpoint_format", "pack_dtype", "damp_percent", "damp_auto_increment",
    "static_groups", "true_sequential", "model_name_or_path", "model_file_base_name",
    "model_seqlen", "tokenizer", "dataset", "use_exllama", "exllama_config", "cache_block_outputs",
    "max_input_length", "pad_token_id", "use_cuda_fp16", "batch_size",
    "module_name_preceding_first_block", "block_name_to_quantize", "do_fuse", "fuse_max_seq_len",
    "backend", "bnb_4bit_compute_dtype", "bnb_4bit_quant_storage", "llm_int8_threshold",
    "llm_int8_enable_fp32_cpu_offload",
}  # fmt: skip
"""Keys that say how a file was made or which kernel to take."""
_OTHERS = {
    "quark": "its layers' own configs are not read",
    "torchao": "its types are Python objects",
}


def read_quantised(keys: Keys, plain: Dtype) -> Quantised:
    """Return what a section `quantization_config` says, whose `plain` numbers enter products.

    Raises
    ------
    RefusedError
        With every reason: the method is not read, a key is not known, or a value is none that
        engines take.
    """
    found = Refusals()
    method = METHODS[method_of(keys)]
    known = {*_SILENT, *method.keys.split()}
    for key in keys.names():
        if key not in known and not keys.empty(key):
            found.add(keys.wrong(key, "is not understood", "Leave it out if it changes nothing"))
    with found.collect():
        quantised = method.read(keys, plain)
    found.check()
    return structs.replace(quantised, method=method_of(keys), static=_static(keys))


def _static(keys: Keys) -> bool | None:
    """Return whether scales of what enters products are stored, None where parts differ on it."""
    if keys.has("activation_scheme"):
        return keys.is_text("activation_scheme", "static")
    if keys.has("quant_algo"):
        return _STATIC.get(keys.text("quant_algo").upper())
    groups = keys.inner("config_groups")
    every = [groups.inner(name) for name in groups.names()]
    said = {
        each.has("input_activations")
        and each.inner("input_activations").values.get("dynamic", False) is False
        for each in every
    }
    return said.pop() if len(said) == 1 else None


_STATIC = {"FP8": True, "FP8_PER_CHANNEL_PER_TOKEN": False}
"""ModelOpt's algorithms in float8, by whether they store scales of activations: ModelOptFp8Config
of vllm 0.33.0."""


def method_of(keys: Keys) -> str:
    """Return the `quant_method` of a section; RefusedError if it is none that is read."""
    if not keys.has("quant_method") and keys.has("quant_algo"):
        return "modelopt"
    method = keys.text("quant_method").lower()
    if method not in METHODS:
        why = _OTHERS.get(method, "it is not known")
        raise keys.wrong(
            "quant_method",
            f"is not read: {why}",
            f"Give the model in one of {', '.join(METHODS)}, or not quantised",
        )
    return method
