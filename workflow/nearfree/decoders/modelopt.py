"""ModelOpt: one algorithm for all matrices, or one for each layer."""

from typing import NamedTuple

from nearfree.core.precision import Dtype
from nearfree.decoders.keys import Keys
from nearfree.decoders.names import Names, read_names
from nearfree.decoders.quantised import Quantised, cache_dtype
from nearfree.decoders.schemes import Scheme, read_scheme, scheme, weight_only
from nearfree.errors import Refusals


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


def modelopt(keys: Keys, plain: Dtype) -> Quantised:
    """Return what ModelOpt says; ModelOptQuantConfigBase of vllm 0.33.0 reads it alike.

    Where algorithms are mixed, engines read of `quantized_layers` what enters products, and not of
    `config_groups`: vllm 0.33.0, layers/quantization/modelopt.py:1579-1763; sglang 0.5.23,
    sglang/srt/layers/quantization/modelopt_quant.py:814-1004.
    """
    found, products = Refusals(), Refusals()
    kv, ignored, named, others = None, Names(), tuple[tuple[Names, Scheme], ...](), None
    mixed = keys.has("quant_algo") and keys.text("quant_algo").upper() == "MIXED_PRECISION"
    with found.collect():
        kv = cache_dtype(keys)
    with found.collect():
        lists = [read_names(keys, key, "text") for key in ("ignore", "exclude_modules")]
        if all(keys.has(key) for key in ("ignore", "exclude_modules")) and lists[0] != lists[1]:
            raise keys.wrong("ignore", "differs from exclude_modules")
        ignored = lists[0] if keys.has("ignore") else lists[1]
    with found.collect():
        if mixed:
            named = _layers(keys, plain)
        elif keys.has("quantized_layers"):
            raise keys.wrong("quantized_layers", "stands beside one quant_algo for all")
        else:
            others = _algorithm(keys, plain)
    said = set[Scheme]()
    with found.collect():
        groups = keys.inner("config_groups")
        for group in map(groups.inner, groups.names()):
            with found.collect():
                said.add(read_scheme(group, plain, products))
    found.check()
    schemes = {others} if others else {each for _, each in named}
    if said and said != schemes:
        differs = keys.wrong("config_groups", "differs from quant_algo and quantized_layers")
        if {*map(weight_only, said)} != {*map(weight_only, schemes)}:
            raise differs
    if said and said != schemes and not mixed:
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
        with found.collect():
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


MODELOPT_KEYS = (
    "quant_algo group_size ignore exclude_modules config_groups quantized_layers kv_cache_scheme "
    "kv_cache_quant_algo"
)
"""The keys that its section may have."""
