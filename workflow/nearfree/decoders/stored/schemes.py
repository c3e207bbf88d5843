"""Schemes, in which a matrix is stored and multiplied, from the arguments of a quantisation."""

from msgspec import Struct, structs

from nearfree.core.precision import FORMATS, Dtype
from nearfree.decoders.keys import Keys
from nearfree.errors import Refusals


class Scheme(Struct, frozen=True, kw_only=True):
    """How matrices are stored and multiplied.

    `weights` is the format of stored weights, `activations` that of the product's other operand:
    the same format if both are quantised alike, the unquantised dtype for weight-only methods.
    `bits` are the bits per stored weight, with its share of scales and zero points; scales of a
    whole row or matrix are not counted. `group` is the number of inputs that share a scale, 0 for
    all of them, and `rows` the number of outputs that share it.
    """

    weights: Dtype
    activations: Dtype
    bits: float
    group: int = 0
    rows: int = 1


def make_scheme(
    weights: Dtype,
    activations: Dtype,
    *,
    group: int = 0,
    rows: int = 1,
    zero_points: bool = False,
    scale_bits: int = 0,
) -> Scheme:
    """Return the scheme of matrices with a scale, and possibly a zero point, per group.

    Parameters
    ----------
    group, rows
        Inputs and outputs that share a scale; group 0 for a scale per row or per matrix.
    zero_points
        Whether each group has a zero point, as wide as a weight.
    scale_bits
        Bits of a scale; 0 for the usual ones of the format, or 16 if that has none.
    """
    format_ = FORMATS[weights]
    shared = (scale_bits or format_.scale_bits or 16) + (format_.bits if zero_points else 0)
    bits = format_.bits + (shared / (group * rows) if group else 0)
    return Scheme(weights=weights, activations=activations, bits=bits, group=group, rows=rows)


def weight_only(scheme: Scheme) -> Scheme:
    """Return a scheme with its activations ignored, to compare how weights are stored."""
    return structs.replace(scheme, activations=scheme.weights)


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
_ACTIVATIONS: dict[Dtype, tuple[Dtype, ...]] = {
    "float8": ("float8",),
    "float8_block": ("float8",),
    "int8": ("int8",),
    "int4": ("int8", "float8"),
    "nvfp4": ("nvfp4",),
    "mxfp4": ("mxfp4", "float8"),
}
"""Formats of activations, besides unquantised ones, that each format of weights can multiply."""
_SCALE_BITS = {
    "torch.uint8": 8, "torch.float8_e4m3fn": 8, "torch.bfloat16": 16, "torch.float16": 16,
    "torch.float32": 32,
}  # fmt: skip


def read_scheme(group: Keys, plain: Dtype, products: Refusals) -> Scheme:
    """Return the scheme of a group of compressed-tensors: its `weights` and `input_activations`.

    If activations are not understood, the reason is added to `products`; the weights are still
    known.
    Source: quant_args.py and quant_scheme.py of compressed-tensors 0.17.0; _get_scheme_from_parts
    of vllm 0.33.0.

    Raises
    ------
    RefusedError
        Engines do not store the number format, groups or scales. The error gives every reason.
    """
    refusals, weights = Refusals(), group.inner("weights")
    dtype, rows, columns, zero_points, activations = plain, 1, 0, False, plain
    with refusals.collect():
        if weights.flag("dynamic"):
            raise weights.wrong("dynamic", "says that weights are quantised anew in each forward")
    scale_bits = refusals.read(lambda: _scale_bits(weights), 0)
    with refusals.collect():
        zero_points = weights.has("symmetric") and not weights.flag("symmetric")
    with refusals.collect():
        dtype, columns = _dtype(weights)
        activations = products.read(lambda: _activations(group, dtype, plain), plain)
        if zero_points and not dtype.startswith("int"):
            refusals.add(weights.wrong("symmetric", f"gives zero points to {dtype}"))
        if dtype == "float8_block":
            rows, columns = block(weights, "block_structure")
    refusals.check()
    return make_scheme(
        dtype, activations, group=columns, rows=rows, zero_points=zero_points, scale_bits=scale_bits
    )


def _activations(group: Keys, weights: Dtype, plain: Dtype) -> Dtype:
    """Return the format of activations, `plain` if they are not quantised."""
    if not group.has("input_activations"):
        return plain
    inputs = group.inner("input_activations")
    kind, bits = inputs.text("type"), inputs.whole("num_bits")
    dtype, _ = _dtype(inputs) if (kind, bits) == ("float", 4) else (_eight_bit_dtype(inputs), 0)
    if dtype not in _ACTIVATIONS[weights]:
        raise group.wrong("input_activations", f"are {dtype}, which no {weights} is multiplied by")
    return weights if weights == "float8_block" else dtype


def _eight_bit_dtype(keys: Keys) -> Dtype:
    """Return the 8-bit format of activations."""
    kind, bits = keys.text("type"), keys.whole("num_bits")
    if (kind, bits) not in (("float", 8), ("int", 8)):
        raise keys.wrong("num_bits", f"of type {kind!r:.40} is not understood")
    return "float8" if kind == "float" else "int8"


def _dtype(keys: Keys) -> tuple[Dtype, int]:
    """Return the format and the number of inputs that share a scale, 0 for all."""
    kind, bits = keys.text("type"), keys.whole("num_bits")
    size = keys.whole("group_size", least=-1) if keys.has("group_size") else 0
    strategy_name = keys.text("strategy") if keys.has("strategy") else _default_strategy(keys, size)
    if strategy_name not in _STRATEGIES:
        raise keys.wrong("strategy", f"is none of {', '.join(_STRATEGIES)}")
    strategy = _STRATEGIES[strategy_name]
    if strategy == "group" and size < 1:
        raise keys.wrong("group_size", "is no size of a group")
    granularity = str(size) if (kind, bits, strategy) == ("float", 4, "group") else strategy
    if (kind, bits, granularity) not in _WEIGHTS:
        groups = f" in groups of {size}" if strategy == "group" else f" by {strategy_name}"
        raise keys.wrong("num_bits", f"of type {kind!r:.40}{groups} is not understood")
    return _WEIGHTS[kind, bits, granularity], size if strategy == "group" else 0


def _default_strategy(keys: Keys, size: int) -> str:
    if keys.has("block_structure"):
        return "block"
    return "group" if size > 0 else "channel" if size else "tensor"


def block(keys: Keys, key: str) -> tuple[int, int]:
    """Return the outputs and inputs of a block from a key; RefusedError if it holds no pair."""
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
