"""Quantisation sections of config files: reads the method that they name, and some of them."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from msgspec import structs

from nearfree.core.precision import Dtype
from nearfree.decoders.keys import Keys
from nearfree.decoders.names import Names, read_names
from nearfree.decoders.stored.few_bits import auto_round, awq, bitsandbytes, gptq
from nearfree.decoders.stored.modelopt import MODELOPT_KEYS, modelopt
from nearfree.decoders.stored.quantised import ALIKE, Quantised, cache_dtype, choice
from nearfree.decoders.stored.schemes import Scheme, block, make_scheme, read_scheme
from nearfree.errors import Refusals


def _fp8(keys: Keys, plain: Dtype) -> Quantised:
    """Return the quantisation of an `fp8` section.

    Source: Fp8Config of vllm 0.33.0, FineGrainedFP8Config of transformers.
    """
    refusals, products = Refusals(), Refusals()
    for key, values in (("fmt", ("e4m3", "float8_e4m3fn")), ("scale_fmt", ("ue8m0", "float"))):
        if keys.has(key):
            with refusals.collect():
                choice(keys, key, *values)
    dtype: Dtype = "float8_block" if keys.has("weight_block_size") else "float8"
    with products.collect():
        activations = choice(keys, "activation_scheme", "dynamic", "static")
        if dtype == "float8_block" and activations == "static":
            raise keys.wrong("activation_scheme", "stands beside weight_block_size")
    rows, group = 1, 0
    if dtype == "float8_block":
        rows, group = refusals.read(lambda: block(keys, "weight_block_size"), (1, 0))
    with refusals.collect():
        ignored_layers, unconverted = (
            read_names(keys, key, "path") for key in ("ignored_layers", "modules_to_not_convert")
        )
        if ignored_layers.exact and unconverted.exact and ignored_layers != unconverted:
            raise keys.wrong("ignored_layers", "differs from modules_to_not_convert")
    none = None, Quantised()
    routed, modelopt_part = refusals.read(lambda: _fp4_experts(keys, plain), none)
    refusals.check()
    ignored = unconverted if ignored_layers == Names() else ignored_layers
    return Quantised(
        kv=modelopt_part.kv,
        others=make_scheme(dtype, dtype, group=group, rows=rows),
        routed=routed,
        named=modelopt_part.named,
        ignored=ignored,
        modelopt_part=None if modelopt_part == Quantised() else modelopt_part,
        refusals=(*products.found, *modelopt_part.refusals),
    )


def _fp4_experts(keys: Keys, plain: Dtype) -> tuple[Scheme | None, Quantised]:
    """Return the scheme of experts that ModelOpt converted in an FP8 checkpoint, and its section.

    Matrices that its lists leave out stay in FP8. Source: DeepseekV4FP8Config of vllm 0.33.0, which
    reads only `moe_quant_algo`. With `fp8` engines do not read the `kv_cache_scheme` of AutoFP8,
    "static", as `text_part` notes: sglang 0.5.23, sglang/srt/layers/quantization/fp8.py:349-387.
    """
    if not keys.has("moe_quant_algo"):
        refusals = Refusals()
        for key in MODELOPT_KEYS.split():
            if not (keys.empty(key) or (key == "kv_cache_scheme" and keys.is_text(key, "static"))):
                refusals.add(keys.wrong(key, "needs moe_quant_algo, which is missing", _LEAVE_OUT))
        refusals.check()
        return None, Quantised()
    choice(keys, "moe_quant_algo", "NVFP4")
    part = modelopt(keys, plain) if keys.has("quant_algo") else Quantised()
    routed = make_scheme("nvfp4", "nvfp4", group=16)
    if part.others or any(scheme != routed for _, scheme in part.named):
        raise keys.wrong("moe_quant_algo", "differs from quant_algo and quantized_layers")
    return routed, part


_LEAVE_OUT = "Leave it out if it changes nothing"


def _fbgemm(keys: Keys, plain: Dtype) -> Quantised:  # noqa: ARG001 (one signature for all)
    """Return the quantisation of an `fbgemm_fp8` section, with a scale per output.

    Source: FBGEMMFp8Config of vllm 0.33.0.
    """
    ignored = read_names(keys, "modules_to_not_convert", "path")
    return Quantised(others=make_scheme("float8", "float8"), ignored=ignored)


def _mxfp4(keys: Keys, plain: Dtype) -> Quantised:
    """Return the quantisation of an `mxfp4` section: only routed experts are quantised.

    Source: Mxfp4Config of vllm 0.33.0 and of sglang 0.5.23
    (sglang/srt/layers/quantization/mxfp4.py:357-381). In a model without experts vLLM builds every
    product unquantised, and SGLang builds none on an NVIDIA GPU.
    """
    ignored = read_names(keys, "modules_to_not_convert", "path")
    return Quantised(routed=make_scheme("mxfp4", plain, group=32), ignored=ignored)


_FORMATS = (
    "naive-quantized", "float-quantized", "int-quantized", "pack-quantized",
    "nvfp4-pack-quantized", "mxfp4-pack-quantized", "mixed-precision",
)  # fmt: skip


def _compressed_tensors(keys: Keys, plain: Dtype) -> Quantised:
    """Return the quantisation of a `compressed-tensors` section, version 0.17.0.

    In that package the target `Linear` includes the LM head; in vllm 0.33.0 it does not.
    """
    refusals, products = Refusals(), Refusals()
    linear_schemes, named = list[Scheme](), list[tuple[Names, Scheme]]()
    kv = refusals.read(lambda: cache_dtype(keys), None)
    ignored = refusals.read(lambda: read_names(keys, "ignore", "whole"), Names())
    with refusals.collect():
        if keys.has("format"):
            choice(keys, "format", *_FORMATS)
    for key in ("sparsity_config", "transform_config"):
        if keys.has(key) and not keys.empty(key):
            refusals.add(keys.wrong(key, "changes what is stored or multiplied", ALIKE))
    groups = keys.inner("config_groups")
    if not groups.names():
        refusals.add(keys.wrong("config_groups", "has no groups"))
    for group in map(groups.inner, groups.names()):
        scheme = refusals.read(partial(read_scheme, group, plain, products), None)
        with refusals.collect():
            if group.has("format"):
                choice(group, "format", *_FORMATS)
        if group.has("output_activations"):
            products.add(group.wrong("output_activations", "are not understood"))
        with refusals.collect():
            targets = group.list_of("targets", str)
            if not targets:
                raise group.wrong("targets", "names no matrices")
            named_targets = [target for target in targets if target != "Linear"]
            names = read_names(group, "targets", "whole", named_targets)
            if scheme and "Linear" in targets:
                linear_schemes.append(scheme)
            if scheme and named_targets:
                named.append((names, scheme))
    if len(set(linear_schemes)) > 1:
        refusals.add(keys.wrong("config_groups", "gives Linear two schemes", ALIKE))
    refusals.check()
    first = linear_schemes[0] if linear_schemes else None
    head = None if first else False
    return Quantised(
        kv=kv,
        others=first,
        named=tuple(named),
        ignored=ignored,
        head=head,
        refusals=tuple(products.found),
    )


class Method(NamedTuple):
    """How the section of a `quant_method` is read.

    `keys` are the keys that it may have, besides those that do not change a forward. `usual` is the
    default dtype of unquantised weights.
    """

    read: Callable[[Keys, Dtype], Quantised]
    keys: str
    usual: Dtype | None = None


_UNCONVERTED = "modules_to_not_convert"
_MODELOPT = Method(modelopt, MODELOPT_KEYS)
_AUTO_ROUND = Method(
    auto_round,
    "bits group_size sym packing_format data_type extra_config to_quant_block_names act_bits "
    "act_data_type act_dynamic act_group_size act_sym autoround_version vllm_backend iters lr "
    "minmax_lr seqlen nsamples amp scale_dtype gradient_accumulate_steps enable_quanted_input "
    "enable_minmax_tuning enable_norm_bias_tuning low_gpu_mem_usage low_cpu_mem_usage",
)
METHODS = {
    "fp8": Method(
        _fp8,
        f"activation_scheme weight_block_size ignored_layers {_UNCONVERTED} fmt scale_fmt "
        f"moe_quant_algo {MODELOPT_KEYS}",
        "bfloat16",
    ),
    "fbgemm_fp8": Method(_fbgemm, f"{_UNCONVERTED} activation_scale_ub"),
    "compressed-tensors": Method(
        _compressed_tensors,
        "config_groups format ignore kv_cache_scheme sparsity_config transform_config",
    ),
    "awq": Method(awq, f"bits w_bit group_size q_group_size zero_point {_UNCONVERTED} lm_head"),
    "gptq": Method(
        gptq, "bits group_size desc_act sym format dynamic modules_in_block_to_quantize lm_head"
    ),
    "auto-round": _AUTO_ROUND,
    "auto_round": _AUTO_ROUND,
    "bitsandbytes": Method(
        bitsandbytes,
        "load_in_4bit _load_in_4bit load_in_8bit _load_in_8bit bnb_4bit_quant_type "
        "bnb_4bit_use_double_quant llm_int8_skip_modules",
    ),
    "mxfp4": Method(_mxfp4, _UNCONVERTED, "bfloat16"),
    "modelopt": _MODELOPT,
    "modelopt_fp4": _MODELOPT,
}
"""By `quant_method`. The `usual` of fp8 is that of DeepSeek's and MiniMax's checkpoints; that of
mxfp4 is the only dtype that Mxfp4Config of vllm 0.33.0 accepts."""
_NEUTRAL = {
    "quant_method", "version", "producer", "quantization_status", "global_compression_ratio",
    "meta", "checkpoint_format", "pack_dtype", "damp_percent", "damp_auto_increment",
    "static_groups", "true_sequential", "model_name_or_path", "model_file_base_name",
    "model_seqlen", "tokenizer", "dataset", "use_exllama", "exllama_config", "cache_block_outputs",
    "max_input_length", "pad_token_id", "use_cuda_fp16", "batch_size",
    "module_name_preceding_first_block", "block_name_to_quantize", "do_fuse", "fuse_max_seq_len",
    "backend", "bnb_4bit_compute_dtype", "bnb_4bit_quant_storage", "llm_int8_threshold",
    "llm_int8_enable_fp32_cpu_offload",
}  # fmt: skip
"""Keys about how a file was made or which kernel to use; they do not change a forward."""
_UNREAD_METHODS = {
    "quark": "its layers' own configs are not read",
    "torchao": "its types are Python objects",
}


def read_quantised(keys: Keys, plain: Dtype) -> Quantised:
    """Return the quantisation of a section `quantization_config`.

    Raises
    ------
    RefusedError
        The method is not read, a key is not known, or engines do not accept a value. The error
        gives every reason.
    """
    refusals = Refusals()
    method = METHODS[method_of(keys)]
    known = {*_NEUTRAL, *method.keys.split()}
    for key in keys.names():
        if key not in known and not keys.empty(key):
            refusals.add(keys.wrong(key, "is not understood", "Leave it out if it changes nothing"))
    with refusals.collect():
        quantised = method.read(keys, plain)
    refusals.check()
    return structs.replace(quantised, method=method_of(keys), static=_static(keys))


def _static(keys: Keys) -> bool | None:
    """Return whether scales of activations are stored, None if that is mixed or not known."""
    if keys.has("activation_scheme"):
        return keys.is_text("activation_scheme", "static")
    if keys.has("quant_algo"):
        return _STATIC.get(keys.text("quant_algo").upper())
    groups = keys.inner("config_groups")
    static_groups = {
        group.has("input_activations")
        and group.inner("input_activations").values.get("dynamic", False) is False
        for group in map(groups.inner, groups.names())
    }
    return static_groups.pop() if len(static_groups) == 1 else None


_STATIC = {"FP8": True, "FP8_PER_CHANNEL_PER_TOKEN": False}
"""Whether ModelOpt's float8 algorithms store scales of activations: ModelOptFp8Config of vllm
0.33.0."""


def method_of(keys: Keys) -> str:
    """Return the `quant_method` of a section; RefusedError if that is not read."""
    if not keys.has("quant_method") and keys.has("quant_algo"):
        return "modelopt"
    method = keys.text("quant_method").lower()
    if method not in METHODS:
        why = _UNREAD_METHODS.get(method, "it is not known")
        raise keys.wrong(
            "quant_method",
            f"is not read: {why}",
            f"Give the model quantised by one of {', '.join(METHODS)}, or unquantised",
        )
    return method
