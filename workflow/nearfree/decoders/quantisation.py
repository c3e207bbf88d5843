"""Quantisation: what each method's section of a config file says of the matrices."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from msgspec import Struct

from nearfree.core.precision import Dtype
from nearfree.decoders.keys import Keys
from nearfree.decoders.names import Names, read_names
from nearfree.decoders.schemes import Scheme, block, read_scheme, scheme, weight_only
from nearfree.errors import Refusal, Refusals


class Quantised(Struct, frozen=True, kw_only=True):
    """What a method says: the scheme of matrices by name, of all others, and what is left out.

    `routed` is the scheme of routed experts where it is not that of all others. `head` and
    `experts` say whether the LM head and the routed experts are among all others, None if engines
    differ on it. `beside` is what ModelOpt's own file says of it, where that speaks of a part
    alone. `refusals` say what is not known of the products: the weights are as is said here.
    """

    kv: Dtype | None = None
    others: Scheme | None = None
    routed: Scheme | None = None
    named: tuple[tuple[Names, Scheme], ...] = ()
    ignored: Names = Names()
    head: bool | None = False
    experts: bool | None = True
    beside: "Quantised | None" = None
    refusals: tuple[Refusal, ...] = ()


def _choice(keys: Keys, key: str, *known: str) -> str:
    """Return a text out of those that are known."""
    if keys.text(key) not in known:
        raise keys.wrong(key, f"is none of {', '.join(known)}")
    return keys.text(key)


def _fp8(keys: Keys, plain: Dtype) -> Quantised:
    """Return what `fp8` says: Fp8Config of vllm 0.33.0, FineGrainedFP8Config of transformers."""
    found, products = Refusals(), Refusals()
    for key, known in (("fmt", ("e4m3", "float8_e4m3fn")), ("scale_fmt", ("ue8m0", "float"))):
        if keys.has(key):
            with found.gathered():
                _choice(keys, key, *known)
    dtype: Dtype = "float8_block" if keys.has("weight_block_size") else "float8"
    rows, group = 1, 0
    with products.gathered():
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
    routed, part = None, Quantised()
    with found.gathered():
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
    `moe_quant_algo` alone.
    """
    if not keys.has("moe_quant_algo"):
        found = Refusals()
        for key in _MODELOPT.keys.split():
            if not keys.empty(key):
                found.add(keys.wrong(key, "stands beside no moe_quant_algo", _APART))
        found.check()
        return None, Quantised()
    _choice(keys, "moe_quant_algo", "NVFP4")
    part = _modelopt(keys, plain) if keys.has("quant_algo") else Quantised()
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


_INTEGERS: dict[int, Dtype] = {4: "int4", 8: "int8"}


def _integers(
    keys: Keys,
    plain: Dtype,
    known: tuple[int, ...],
    zeros: Callable[[], bool],
    *,
    bits: Sequence[str] = ("bits",),
    group: Sequence[str] = ("group_size",),
) -> Scheme:
    """Return the scheme of whole numbers; `bits` and `group` are the names of either key."""
    found = Refusals()
    wide, size, zero_points = 0, 0, False
    with found.gathered():
        wide = keys.whole(keys.one_of(*bits))
        if wide not in known:
            raise keys.wrong(keys.one_of(*bits), f"is none of {', '.join(map(str, known))}")
    with found.gathered():
        size = keys.whole(keys.one_of(*group), least=-1)
        if not size:
            raise keys.wrong(keys.one_of(*group), "is no size of a group; -1 is a whole row")
    with found.gathered():
        zero_points = zeros()
    found.check()
    return scheme(_INTEGERS[wide], plain, group=max(size, 0), zero_points=zero_points)


def _awq(keys: Keys, plain: Dtype) -> Quantised:
    """Return what `awq` says: AutoAWQConfig of vllm 0.33.0."""
    found = Refusals()
    others, ignored, head = None, Names(), False
    with found.gathered():
        zeros = lambda: keys.flag(keys.one_of("zero_point"))  # noqa: E731
        bits, group = ("bits", "w_bit"), ("group_size", "q_group_size")
        others = _integers(keys, plain, (4,), zeros, bits=bits, group=group)
    with found.gathered():
        ignored = read_names(keys, "modules_to_not_convert", "text")
    with found.gathered():
        head = keys.flag("lm_head")
    found.check()
    return Quantised(others=others, ignored=ignored, head=head)


def _gptq(keys: Keys, plain: Dtype) -> Quantised:
    """Return what `gptq` says: AutoGPTQConfig of vllm 0.33.0."""
    found = Refusals()
    others, head = None, False
    with found.gathered():
        others = _integers(keys, plain, (4, 8), lambda: not keys.flag(keys.one_of("sym")))
    with found.gathered():
        head = keys.flag("lm_head")
    for key in ("dynamic", "modules_in_block_to_quantize"):
        if keys.has(key) and not keys.empty(key):
            found.add(keys.wrong(key, "gives some matrices rules of their own", _WHOLE))
    found.check()
    return Quantised(others=others, head=head)


_NF4 = "its matrices are dequantised before each product, which no forward here has"


def _bitsandbytes(keys: Keys, plain: Dtype) -> Quantised:
    """Return what `bitsandbytes` stores: NF4 or FP4 in groups of 64, or LLM.int8().

    A group's float32 scale is itself stored in 8 bits with `double_quant`, of which 256 share a
    float32. Routed experts are Linear layers, and quantised, in some releases of transformers
    alone, those whose experts are no parameters of one module; without a list the LM head is left
    out. Source: BitsAndBytesConfig, replace_with_bnb_linear and get_modules_to_not_convert of
    transformers 5.23; the group sizes are the defaults of quantize_4bit of bitsandbytes.
    """
    found = Refusals()
    flags, ignored = dict[str, bool](), Names()
    for key in ("load_in_4bit", "load_in_8bit", "bnb_4bit_use_double_quant"):
        with found.gathered():
            names = [name for name in (key, f"_{key}") if keys.has(name)]
            flags[key] = keys.flag(keys.one_of(*names)) if names else False
    with found.gathered():
        if keys.has("bnb_4bit_quant_type"):
            _choice(keys, "bnb_4bit_quant_type", "nf4", "fp4")
    with found.gathered():
        ignored = read_names(keys, "llm_int8_skip_modules", "path")
    found.check()
    if flags["load_in_4bit"] == flags["load_in_8bit"]:
        raise keys.wrong("load_in_4bit", "must be true, or load_in_8bit, and not both")
    others = Scheme(weights="int8", activations=plain, bits=8)
    if flags["load_in_4bit"]:
        scale = 8 + 32 / 256 if flags["bnb_4bit_use_double_quant"] else 32
        others = Scheme(weights="int4", activations=plain, bits=4 + scale / 64, group=64)
    return Quantised(
        others=others,
        ignored=ignored,
        head=None if keys.has("llm_int8_skip_modules") else False,
        experts=None,
        refusals=keys.wrong(
            "quant_method", _NF4, "Read its memory, or give the model in another method"
        ).refusals,
    )


_WHOLE = "Give a model whose matrices all are quantised alike"
_FORMATS = (
    "naive-quantized", "float-quantized", "int-quantized", "pack-quantized",
    "nvfp4-pack-quantized", "mxfp4-pack-quantized", "mixed-precision",
)  # fmt: skip


def _compressed(keys: Keys, plain: Dtype) -> Quantised:
    """Return what `compressed-tensors` says, version 0.17.0.

    Its own `Linear` has the LM head in it and vllm 0.33.0's has not.
    """
    found, products = Refusals(), Refusals()
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
        stored, names = None, Names()
        with found.gathered():
            stored = read_scheme(group, plain, products)
        with found.gathered():
            if group.has("format"):
                _choice(group, "format", *_FORMATS)
        if group.has("output_activations"):
            products.add(group.wrong("output_activations", "are not understood"))
        with found.gathered():
            targets = group.list_of("targets", str)
            if not targets:
                raise group.wrong("targets", "names no matrices")
            rest = [each for each in targets if each != "Linear"]
            names = read_names(group, "targets", "whole", rest)
            if stored and "Linear" in targets:
                others.append(stored)
            if stored and rest:
                named.append((names, stored))
    if len(set(others)) > 1:
        found.add(keys.wrong("config_groups", "gives Linear two schemes", _WHOLE))
    found.check()
    first = others[0] if others else None
    head = None if first else False
    return Quantised(
        kv=kv,
        others=first,
        named=tuple(named),
        ignored=ignored,
        head=head,
        refusals=tuple(products.found),
    )


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
    found, products = Refusals(), Refusals()
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
    said = set[Scheme]()
    with found.gathered():
        groups = keys.inner("config_groups")
        for group in map(groups.inner, groups.names()):
            with found.gathered():
                said.add(read_scheme(group, plain, products))
    found.check()
    schemes = {others} if others else {each for _, each in named}
    if said and said != schemes:
        differs = keys.wrong("config_groups", "differs from quant_algo and quantized_layers")
        if {*map(weight_only, said)} != {*map(weight_only, schemes)}:
            raise differs
        why = "enters other numbers into products than quant_algo and quantized_layers"
        products.add(keys.wrong("config_groups", why))
    return Quantised(
        kv=kv,
        others=others,
        named=named,
        ignored=ignored,
        head=True,
        refusals=tuple(products.found),
    )


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
        f"activation_scheme weight_block_size ignored_layers {_SKIPPED} fmt scale_fmt "
        f"moe_quant_algo {_MODELOPT.keys}",
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
    "bitsandbytes": Method(
        _bitsandbytes,
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
