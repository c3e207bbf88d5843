"""Schemes: how a matrix is stored and multiplied, from the arguments of a quantisation."""

from msgspec import Struct, structs

from nearfree.core.precision import FORMATS, Dtype
from nearfree.decoders.keys import Keys
from nearfree.errors import Refusals


class Scheme(Struct, frozen=True, kw_only=True):
    """How some matrices are stored and multiplied.

    `weights` is what they are stored in, `activations` what enters the product: the same where
    both are quantised alike, the file's plain dtype for weight-only. `bits` is what a stored
    weight takes with its part of scales and zero points; those of a whole row or matrix are not
    counted. `group` is how many of a matrix' inputs share a scale, 0 for all of them, `rows` how
    many of its outputs share it.
    """

    weights: Dtype
    activations: Dtype
    bits: float
    group: int = 0
    rows: int = 1


def scheme(
    weights: Dtype,
    activations: Dtype,
    *,
    group: int = 0,
    rows: int = 1,
    zero_points: bool = False,
    scale_bits: int = 0,
) -> Scheme:
    """Return the scheme of matrices with a scale, and perhaps a zero point, a group.

    Parameters
    ----------
    group, rows
        Inputs and outputs that share a scale; group 0 for a scale a row or a matrix.
    zero_points
        Whether each group has one, as wide as a weight.
    scale_bits
        Of a scale; 0 for what the format usually has, 16 where that is not known.
    """
    format_ = FORMATS[weights]
    shared = (scale_bits or format_.scale_bits or 16) + (format_.bits if zero_points else 0)
    bits = format_.bits + (shared / (group * rows) if group else 0)
    return Scheme(weights=weights, activations=activations, bits=bits, group=group, rows=rows)


def weight_only(each: Scheme) -> Scheme:
    """Return how matrices are stored, whatever enters their products."""
    return structs.replace(each, activations=each.weights)


_WEIGHTS: dict[tuple[str, int, str], Dtype] = {
    ("float", 8, "whole"): "float8",
    ("float", 8, "block"): "float8_block",
    ("int", 8, "whole"): "int8",
    ("int", 8, "group"): "int8",
    ("int", 4, "whole"): "int4",
    ("int", 4, "group"): "int4",
    ("float", 4, "16"): "nvfp4",
    ("float", 4, "32"): "mxfp4",
}
_STRATEGIES = {
    "tensor": "whole", "channel": "whole", "token": "whole", "block": "block",
    "group": "group", "tensor_group": "group",
}  # fmt: skip
_ENTERS: dict[Dtype, tuple[Dtype, ...]] = {
    "float8": ("float8",),
    "float8_block": ("float8",),
    "int8": ("int8",),
    "int4": ("int8", "float8"),
    "nvfp4": ("nvfp4",),
    "mxfp4": ("mxfp4", "float8"),
}
"""What can enter a product with quantised weights beside plain numbers."""
_SCALE_BITS = {
    "torch.uint8": 8, "torch.float8_e4m3fn": 8, "torch.bfloat16": 16, "torch.float16": 16,
    "torch.float32": 32,
}  # fmt: skip


def read_scheme(group: Keys, plain: Dtype, products: Refusals) -> Scheme:
    """Return the scheme of a group of compressed-tensors: its `weights` and `input_activations`.

    Where what enters is not understood, `products` gets the reason, and the weights are known.
    Source: quant_args.py and quant_scheme.py of compressed-tensors 0.17.0; _get_scheme_from_parts
    of vllm 0.33.0.

    Raises
    ------
    RefusedError
        With every reason: the numbers, groups or scales are none that engines store.
    """
    found, weights = Refusals(), group.inner("weights")
    dtype, rows, columns, zero_points, scale_bits, enters = plain, 1, 0, False, 0, plain
    with found.collect():
        if weights.flag("dynamic"):
            raise weights.wrong("dynamic", "says that weights are quantised anew in each forward")
    with found.collect():
        scale_bits = _scale_bits(weights)
    with found.collect():
        zero_points = weights.has("symmetric") and not weights.flag("symmetric")
    with found.collect():
        dtype, columns = _dtype(weights)
        with products.collect():
            enters = _entering(group, dtype, plain)
        if zero_points and not dtype.startswith("int"):
            found.add(weights.wrong("symmetric", f"gives zero points to {dtype}"))
        if dtype == "float8_block":
            rows, columns = block(weights, "block_structure")
    found.check()
    return scheme(
        dtype, enters, group=columns, rows=rows, zero_points=zero_points, scale_bits=scale_bits
    )


def _entering(group: Keys, weights: Dtype, plain: Dtype) -> Dtype:
    if not group.has("input_activations"):
        return plain
    inputs = group.inner("input_activations")
    kind, bits = inputs.text("type"), inputs.whole("num_bits")
    dtype, _ = _dtype(inputs) if (kind, bits) == ("float", 4) else (_whole(inputs), 0)
    if dtype not in _ENTERS[weights]:
        raise group.wrong("input_activations", f"are {dtype}, which no {weights} is multiplied by")
    return weights if weights == "float8_block" else dtype


def _whole(keys: Keys) -> Dtype:
    kind, bits = keys.text("type"), keys.whole("num_bits")
    if (kind, bits) not in (("float", 8), ("int", 8)):
        raise keys.wrong("num_bits", f"of type {kind!r:.40} is not understood")
    return "float8" if kind == "float" else "int8"


def _dtype(keys: Keys) -> tuple[Dtype, int]:
    """Return the numbers and how many inputs share a scale, 0 for all."""
    kind, bits = keys.text("type"), keys.whole("num_bits")
    size = keys.whole("group_size", least=-1) if keys.has("group_size") else 0
    given = keys.text("strategy") if keys.has("strategy") else _usual(keys, size)
    if given not in _STRATEGIES:
        raise keys.wrong("strategy", f"is none of {', '.join(_STRATEGIES)}")
    strategy = _STRATEGIES[given]
    if strategy == "group" and size < 1:
        raise keys.wrong("group_size", "is no size of a group")
    how = str(size) if (kind, bits, strategy) == ("float", 4, "group") else strategy
    if (kind, bits, how) not in _WEIGHTS:
        groups = f" in groups of {size}" if strategy == "group" else f" a {given}"
        raise keys.wrong("num_bits", f"of type {kind!r:.40}{groups} is not understood")
    return _WEIGHTS[kind, bits, how], size if strategy == "group" else 0


def _usual(keys: Keys, size: int) -> str:
    if keys.has("block_structure"):
        return "block"
    return "group" if size > 0 else "channel" if size else "tensor"


def block(keys: Keys, key: str) -> tuple[int, int]:
    """Return outputs and inputs of the blocks that a key gives; RefusedError if it gives none."""
    sizes = keys.list_of(key, int)
    if len(sizes) != 2 or not all(0 < size <= 4096 for size in sizes):
        raise keys.wrong(key, "is no pair of whole numbers from 1 to 4096")
    return sizes[0], sizes[1]


def _scale_bits(keys: Keys) -> int:
    if not keys.has("scale_dtype"):
        return 0
    dtype = keys.text("scale_dtype")
    if dtype not in _SCALE_BITS:
        raise keys.wrong("scale_dtype", f"is none of {', '.join(_SCALE_BITS)}")
    return _SCALE_BITS[dtype]
