"""ModelOpt: one quantisation algorithm for all matrices, or one per layer."""

from typing import NamedTuple

from nearfree.core.precision import Dtype
from nearfree.decoders.keys import Keys
from nearfree.decoders.names import Names, read_names
from nearfree.decoders.stored.quantised import Quantised, cache_dtype
from nearfree.decoders.stored.schemes import Scheme, make_scheme, read_scheme, weight_only
from nearfree.errors import Refusals


class _Algo(NamedTuple):
    """The formats of an algorithm.

    `activations` is None for the unquantised dtype; `group` is 0 where the file gives the size.
    """

    weights: Dtype
    activations: Dtype | None
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
    return make_scheme(algo.weights, algo.activations or plain, group=group or 0, rows=algo.rows)


def modelopt(keys: Keys, plain: Dtype) -> Quantised:
    """Return the quantisation of a ModelOpt section, as ModelOptQuantConfigBase of vllm 0.33.0.

    Where algorithms are mixed, engines read the format of activations from `quantized_layers`, not
    from `config_groups`: vllm 0.33.0, layers/quantization/modelopt.py:1579-1763; sglang 0.5.23,
    sglang/srt/layers/quantization/modelopt_quant.py:814-1004.
    """
    refusals, products = Refusals(), Refusals()
    ignored, named, common = Names(), tuple[tuple[Names, Scheme], ...](), None
    mixed = keys.has("quant_algo") and keys.text("quant_algo").upper() == "MIXED_PRECISION"
    kv = refusals.read(lambda: cache_dtype(keys), None)
    with refusals.collect():
        lists = [read_names(keys, key, "text") for key in ("ignore", "exclude_modules")]
        if all(keys.has(key) for key in ("ignore", "exclude_modules")) and lists[0] != lists[1]:
            raise keys.wrong("ignore", "differs from exclude_modules")
        ignored = lists[0] if keys.has("ignore") else lists[1]
    with refusals.collect():
        if mixed:
            named = _layers(keys, plain)
        elif keys.has("quantized_layers"):
            raise keys.wrong("quantized_layers", "stands beside one quant_algo for all")
        else:
            common = _algorithm(keys, plain)
    group_schemes = set[Scheme]()
    with refusals.collect():
        groups = keys.inner("config_groups")
        for group in map(groups.inner, groups.names()):
            with refusals.collect():
                group_schemes.add(read_scheme(group, plain, products))
    refusals.check()
    schemes = {common} if common else {scheme for _, scheme in named}
    if group_schemes and group_schemes != schemes:
        differs = keys.wrong("config_groups", "differs from quant_algo and quantized_layers")
        if {*map(weight_only, group_schemes)} != {*map(weight_only, schemes)}:
            raise differs
    if group_schemes and group_schemes != schemes and not mixed:
        why = "has other activations than quant_algo and quantized_layers"
        products.add(keys.wrong("config_groups", why))
    return Quantised(
        kv=kv,
        others=common,
        named=named,
        ignored=ignored,
        head=True,
        refusals=tuple(products.found),
    )


def _layers(keys: Keys, plain: Dtype) -> tuple[tuple[Names, Scheme], ...]:
    """Return the matrices of each scheme in `quantized_layers`; all others are unquantised."""
    layers, refusals = keys.inner("quantized_layers"), Refusals()
    by_scheme: dict[Scheme, list[str]] = {}
    for name in layers.names():
        with refusals.collect():
            by_scheme.setdefault(_algorithm(layers.inner(name), plain), []).append(name)
    by_reason = {refusal.reason: refusal for refusal in reversed(refusals.found)}
    refusals.found = list(by_reason.values())
    refusals.check()
    if not by_scheme:
        raise keys.wrong("quantized_layers", "names no matrices")
    return tuple(
        (read_names(keys, "quantized_layers", "path", names), scheme)
        for scheme, names in by_scheme.items()
    )


MODELOPT_KEYS = (
    "quant_algo group_size ignore exclude_modules config_groups quantized_layers kv_cache_scheme "
    "kv_cache_quant_algo"
)
"""The keys that a ModelOpt section may have."""
