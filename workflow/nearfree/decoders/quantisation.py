"""Quantisation: what each method's section of a config file says of the matrices."""

from collections.abc import Callable
from typing import NamedTuple

from msgspec import Struct

from nearfree.core.precision import Dtype
from nearfree.decoders.keys import Keys
from nearfree.decoders.names import Names, read_names
from nearfree.decoders.schemes import Scheme, block, read_scheme, scheme
from nearfree.errors import Refusals


class Quantised(Struct, frozen=True, kw_only=True):
    """What a method says: the scheme of matrices by name, of all others, and what is left out.

    `head` says whether the LM head is among all others, None if engines differ on it. `experts`
    says that nothing else is.
    """

    kv: Dtype | None = None
    others: Scheme | None = None
    named: tuple[tuple[Names, Scheme], ...] = ()
    ignored: Names = Names()
    head: bool | None = False
    experts: bool = False


def _choice(keys: Keys, key: str, *known: str) -> str:
    """Return a text out of those that are known."""
    if keys.text(key) not in known:
        raise keys.wrong(key, f"is none of {', '.join(known)}")
    return keys.text(key)


def _fp8(keys: Keys, plain: Dtype) -> Quantised:  # noqa: ARG001 (one signature for all)
    """Return what `fp8` says: Fp8Config of vllm 0.33.0, FineGrainedFP8Config of transformers."""
    found = Refusals()
    for key, known in (("fmt", ("e4m3", "float8_e4m3fn")), ("scale_fmt", ("ue8m0", "float"))):
        if keys.has(key):
            with found.gathered():
                _choice(keys, key, *known)
    dtype: Dtype = "float8_block" if keys.has("weight_block_size") else "float8"
    rows, group = 1, 0
    with found.gathered():
        enters = _choice(keys, "activation_scheme", "dynamic", "static")
        if dtype == "float8_block" and enters == "static":
            raise keys.wrong("activation_scheme", "stands beside weight_block_size")
    with found.gathered():
        if dtype == "float8_block":
            rows, group = block(keys, "weight_block_size")
    with found.gathered():
        first, second = (
            read_names(keys, key, "path") for key in ("ignored_layers", "modules_to_not_convert")
        )
        if first.exact and second.exact and first != second:
            raise keys.wrong("ignored_layers", "differs from modules_to_not_convert")
    found.check()
    ignored = second if first == Names() else first
    return Quantised(others=scheme(dtype, dtype, group=group, rows=rows), ignored=ignored)


def _fbgemm(keys: Keys, plain: Dtype) -> Quantised:  # noqa: ARG001
    """Return what `fbgemm_fp8` says: FBGEMMFp8Config of vllm 0.33.0; a scale an output."""
    ignored = read_names(keys, "modules_to_not_convert", "path")
    return Quantised(others=scheme("float8", "float8"), ignored=ignored)


def _mxfp4(keys: Keys, plain: Dtype) -> Quantised:
    """Return what `mxfp4` says: the routed experts alone, as Mxfp4Config of vllm 0.33.0 has it."""
    ignored = read_names(keys, "modules_to_not_convert", "path")
    return Quantised(others=scheme("mxfp4", plain, group=32), ignored=ignored, experts=True)


_INTEGERS: dict[int, Dtype] = {4: "int4", 8: "int8"}


def _integers(
    keys: Keys, bits: str, group: str, plain: Dtype, *, known: tuple[int, ...], zeros: bool
) -> Scheme:
    found = Refusals()
    wide, size = 0, 0
    with found.gathered():
        wide = keys.whole(bits)
        if wide not in known:
            raise keys.wrong(bits, f"is none of {', '.join(map(str, known))}")
    with found.gathered():
        size = keys.whole(group, least=-1)
        if not size:
            raise keys.wrong(group, "is no size of a group; -1 is a whole row")
    found.check()
    return scheme(_INTEGERS[wide], plain, group=max(size, 0), zero_points=zeros)


def _awq(keys: Keys, plain: Dtype) -> Quantised:
    """Return what `awq` says: AutoAWQConfig of vllm 0.33.0."""
    found = Refusals()
    others, ignored = None, Names()
    with found.gathered():
        bits, group = keys.one_of("bits", "w_bit"), keys.one_of("group_size", "q_group_size")
        zeros = keys.flag(keys.one_of("zero_point"))
        others = _integers(keys, bits, group, plain, known=(4,), zeros=zeros)
    with found.gathered():
        ignored = read_names(keys, "modules_to_not_convert", "text")
    found.check()
    return Quantised(others=others, ignored=ignored, head=keys.flag("lm_head"))


def _gptq(keys: Keys, plain: Dtype) -> Quantised:
    """Return what `gptq` says: AutoGPTQConfig of vllm 0.33.0."""
    found = Refusals()
    others = None
    with found.gathered():
        zeros = not keys.flag(keys.one_of("sym"))
        others = _integers(keys, "bits", "group_size", plain, known=(4, 8), zeros=zeros)
    for key in ("dynamic", "modules_in_block_to_quantize"):
        if keys.has(key) and not keys.empty(key):
            found.add(keys.wrong(key, "gives some matrices rules of their own", _WHOLE))
    found.check()
    return Quantised(others=others, head=keys.flag("lm_head"))


_WHOLE = "Give a model whose matrices all are quantised alike"
_FORMATS = (
    "naive-quantized", "float-quantized", "int-quantized", "pack-quantized",
    "nvfp4-pack-quantized", "mxfp4-pack-quantized", "mixed-precision",
)  # fmt: skip


def _compressed(keys: Keys, plain: Dtype) -> Quantised:
    """Return what `compressed-tensors` says, version 0.17.0.

    Its own `Linear` has the LM head in it and vllm 0.33.0's has not.
    """
    found = Refusals()
    kv, ignored, others = None, Names(), list[Scheme]()
    named = list[tuple[Names, Scheme]]()
    with found.gathered():
        kv = _cache(keys)
    with found.gathered():
        ignored = read_names(keys, "ignore", "whole")
    with found.gathered():
        if keys.has("format"):
            _choice(keys, "format", *_FORMATS)
    for key in ("sparsity_config", "transform_config"):
        if keys.has(key) and not keys.empty(key):
            found.add(keys.wrong(key, "changes what is stored or multiplied", _WHOLE))
    groups = keys.inner("config_groups")
    if not groups.names():
        found.add(keys.wrong("config_groups", "has no groups"))
    for group in map(groups.inner, groups.names()):
        with found.gathered():
            stored = read_scheme(group, plain)
            if group.has("format"):
                _choice(group, "format", *_FORMATS)
            if group.has("output_activations"):
                raise group.wrong("output_activations", "are not understood")
            targets = group.list_of("targets", str)
            if not targets:
                raise group.wrong("targets", "names no matrices")
            if "Linear" in targets:
                others.append(stored)
            rest = [each for each in targets if each != "Linear"]
            if rest:
                named.append((read_names(group, "targets", "whole", rest), stored))
    if len(set(others)) > 1:
        found.add(keys.wrong("config_groups", "gives Linear two schemes", _WHOLE))
    found.check()
    first = others[0] if others else None
    head = None if first else False
    return Quantised(kv=kv, others=first, named=tuple(named), ignored=ignored, head=head)


_CACHES: dict[tuple[str, int], Dtype] = {
    ("float", 8): "float8",
    ("int", 8): "int8",
    ("float", 4): "nvfp4",
}
_CACHE_ALGOS: dict[str, Dtype | None] = {
    "FP8": "float8", "INT8": "int8", "NVFP4": "nvfp4", "NONE": None, "": None,
}  # fmt: skip


def _cache(keys: Keys) -> Dtype | None:
    """Return what the cache holds: an algorithm's name, or numbers as compressed-tensors says."""
    for key in ("kv_cache_quant_algo", "kv_cache_scheme"):
        if not keys.has(key):
            continue
        if keys.is_text(key):
            algo = keys.text(key).upper()
            if algo not in _CACHE_ALGOS:
                raise keys.wrong(key, f"is none of {', '.join(filter(None, _CACHE_ALGOS))}")
            return _CACHE_ALGOS[algo]
        inner = keys.inner(key)
        kind, bits = inner.text("type"), inner.whole("num_bits")
        if (kind, bits) not in _CACHES:
            raise inner.wrong("num_bits", f"of type {kind!r:.40} is none that caches hold")
        return _CACHES[kind, bits]
    return None


class _Algo(NamedTuple):
    """`enters` is None for plain numbers; `group` 0 where the file says the size."""

    weights: Dtype
    enters: Dtype | None
    group: int | None = None
    rows: int = 1


_ALGOS = {
    "FP8": _Algo("float8", "float8"),
    "FP8_PER_CHANNEL_PER_TOKEN": _Algo("float8", "float8"),
    "FP8_PB_WO": _Algo("float8_block", "float8_block", 128, 128),
    "FP8_BLOCK_SCALES": _Algo("float8_block", "float8_block", 128, 128),
    "MXFP8": _Algo("mxfp8", "mxfp8", 32),
    "NVFP4": _Algo("nvfp4", "nvfp4", 16),
    "W4A16_NVFP4": _Algo("nvfp4", None, 16),
    "W4A16_AWQ": _Algo("int4", None, 0),
    "W4A8_AWQ": _Algo("int4", "float8", 0),
}
"""By `quant_algo`. Source: LINEAR_ALGOS of vllm 0.33.0's modelopt.py; convert_hf_config.py of
modelopt 0.40.0."""


def _algorithm(keys: Keys, plain: Dtype) -> Scheme:
    name = keys.text("quant_algo")
    algo = _ALGOS.get(name.upper())
    if algo is None:
        raise keys.wrong("quant_algo", f"is none of {', '.join(_ALGOS)}")
    group = algo.group
    if group == 0:
        group = keys.whole("group_size")
    elif group and keys.has("group_size") and keys.whole("group_size") != group:
        raise keys.wrong("group_size", f"is not the {group} of {name}")
    return scheme(algo.weights, algo.enters or plain, group=group or 0, rows=algo.rows)


def _modelopt(keys: Keys, plain: Dtype) -> Quantised:
    """Return what ModelOpt says; ModelOptQuantConfigBase of vllm 0.33.0 reads it alike."""
    found = Refusals()
    kv, ignored, named, others = None, Names(), tuple[tuple[Names, Scheme], ...](), None
    mixed = keys.has("quant_algo") and keys.text("quant_algo").upper() == "MIXED_PRECISION"
    with found.gathered():
        kv = _cache(keys)
    with found.gathered():
        lists = [read_names(keys, key, "text") for key in ("ignore", "exclude_modules")]
        if all(keys.has(key) for key in ("ignore", "exclude_modules")) and lists[0] != lists[1]:
            raise keys.wrong("ignore", "differs from exclude_modules")
        ignored = lists[0] if keys.has("ignore") else lists[1]
    with found.gathered():
        if mixed:
            named = _layers(keys, plain)
        elif keys.has("quantized_layers"):
            raise keys.wrong("quantized_layers", "stands beside one quant_algo for all")
        else:
            others = _algorithm(keys, plain)
    found.check()
    groups = keys.inner("config_groups")
    said = {read_scheme(group, plain) for group in map(groups.inner, groups.names())}
    if said and said != ({others} if others else {each for _, each in named}):
        raise keys.wrong("config_groups", "differs from quant_algo and quantized_layers")
    return Quantised(kv=kv, others=others, named=named, ignored=ignored, head=True)


def _layers(keys: Keys, plain: Dtype) -> tuple[tuple[Names, Scheme], ...]:
    """Return the matrices of each scheme that `quantized_layers` gives; all others are plain."""
    layers, found = keys.inner("quantized_layers"), Refusals()
    by_scheme: dict[Scheme, list[str]] = {}
    for name in layers.names():
        with found.gathered():
            by_scheme.setdefault(_algorithm(layers.inner(name), plain), []).append(name)
    by_reason = {each.reason: each for each in reversed(found.found)}
    found.found = list(by_reason.values())
    found.check()
    if not by_scheme:
        raise keys.wrong("quantized_layers", "names no matrices")
    return tuple(
        (read_names(keys, "quantized_layers", "path", names), stored)
        for stored, names in by_scheme.items()
    )


class Method(NamedTuple):
    """How the section of a `quant_method` is read.

    `keys` are those it may have, besides those that change nothing of a forward; `usual` is what
    is not quantised where a file does not say its dtype.
    """

    read: Callable[[Keys, Dtype], Quantised]
    keys: str
    usual: Dtype | None = None


_SKIPPED = "modules_to_not_convert"
_MODELOPT = Method(
    _modelopt,
    "quant_algo group_size ignore exclude_modules config_groups quantized_layers kv_cache_scheme "
    "kv_cache_quant_algo",
)
METHODS = {
    "fp8": Method(
        _fp8,
        f"activation_scheme weight_block_size ignored_layers {_SKIPPED} fmt scale_fmt",
        "bfloat16",
    ),
    "fbgemm_fp8": Method(_fbgemm, f"{_SKIPPED} activation_scale_ub"),
    "compressed-tensors": Method(
        _compressed,
        "config_groups format ignore kv_cache_scheme sparsity_config transform_config",
    ),
    "awq": Method(_awq, f"bits w_bit group_size q_group_size zero_point {_SKIPPED} lm_head"),
    "gptq": Method(
        _gptq, "bits group_size desc_act sym format dynamic modules_in_block_to_quantize lm_head"
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
    "backend",
}  # fmt: skip
"""Keys that say how a file was made or which kernel to take."""
_OTHERS = {
    "bitsandbytes": "its matrices are decoded before each product, and that is not described",
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
    with found.gathered():
        quantised = method.read(keys, plain)
    found.check()
    return quantised


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
