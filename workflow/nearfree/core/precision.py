"""Number formats: bytes per element, and the peak FLOP/s of their products."""

from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple, get_args

from msgspec import UNSET, Struct, UnsetType, structs

from nearfree.errors import ConfigError

Dtype = Literal[
    "auto", "bfloat16", "float16", "float32", "float8",
    "float8_block", "mxfp8", "int8", "int4", "nvfp4", "mxfp4",
]  # fmt: skip
"""`auto` occurs in plans only: bfloat16 if the machine has it, else float32."""


class Format(Struct, frozen=True):
    """One format: `bits` per element, and `scale_bits` per `group` of elements.

    Scales per row or per matrix are not counted: group 0. `peak` names the peak in platforms.yaml
    of products of two matrices in this format.
    """

    bits: int
    peak: str
    group: int = 0
    scale_bits: int = 0

    @property
    def element_bytes(self) -> float:
        """Bytes per element with its share of a scale, the paper's s."""
        return (self.bits + (self.scale_bits / self.group if self.group else 0)) / 8


FORMATS: dict[str, Format] = {
    "bfloat16": Format(16, "bfloat16"),
    "float16": Format(16, "float16"),
    "float32": Format(32, "float32"),
    "float8": Format(8, "float8"),
    "float8_block": Format(8, "float8", group=128 * 128, scale_bits=32),
    "mxfp8": Format(8, "float8", group=32, scale_bits=8),
    "int8": Format(8, "int8"),
    "int4": Format(4, "int4", group=128, scale_bits=16),
    "nvfp4": Format(4, "float4", group=16, scale_bits=8),
    "mxfp4": Format(4, "float4", group=32, scale_bits=8),
}
"""By dtype, in its usual form: FP8 in blocks of 128 x 128 with a float32 scale (DeepSeek-V3's),
int4 in groups of 128 with a 16-bit scale (AWQ, GPTQ), NVFP4 in groups of 16 and OCP's MXFP8 and
MXFP4 of 32 with a scale of 8 bits."""
GROUPS = {"float8_block": (128, 128)} | {
    name: (1, format_.group)
    for name, format_ in FORMATS.items()
    if format_.group and name != "float8_block"
}
"""Number of outputs and inputs of a matrix that share a scale, in a format's usual form."""
DTYPES: tuple[Dtype, ...] = tuple(name for name in get_args(Dtype) if name in FORMATS)
"""All number formats, without `auto`."""
ELEMENT_BYTES = {name: format_.element_bytes for name, format_ in FORMATS.items()}
"""Bytes per element with its share of a scale, the paper's s, by dtype."""
RESULT_BYTES = {name: max(size, 2.0) for name, size in ELEMENT_BYTES.items()}
"""Bytes per element of a product's result, by the dtype of its inputs: at least 16 bits, since
engines quantise again before each product."""
PLAIN: tuple[Dtype, ...] = ("bfloat16", "float16", "float32")
"""The formats that have no scales."""


class Product(NamedTuple):
    """The formats of a product: of its stored weights, and of its inputs (activations)."""

    weights: Dtype
    activations: Dtype


class Precision(Struct, frozen=True, kw_only=True):
    """The number formats of a forward, by kind of matrix.

    `plain` is the format of all that is never quantised: queries, norms, embeddings and sums of
    products. `kv` is the format of the cache. `attention` holds the formats of most products of
    attention, `roles` the exceptions by the product's role, and `apart` the exceptions of a role in
    some layers, with these layers.
    """

    plain: Dtype
    kv: Dtype
    attention: Product
    ffn: Product
    experts: Product
    shared_experts: Product
    router: Product
    lm_head: Product
    roles: tuple[tuple[str, Product], ...] = ()
    apart: tuple[tuple[str, Product, tuple[int, ...]], ...] | UnsetType = UNSET

    def split_by_format(
        self, role: str, layers: tuple[int, ...]
    ) -> Iterator[tuple["Precision", tuple[int, ...]]]:
        """Split the layers of a role by format: yield each precision with its layers."""
        exceptions = [
            (product, exception_layers)
            for name, product, exception_layers in self.apart or ()
            if name == role
        ]
        excluded = {layer for _, exception_layers in exceptions for layer in exception_layers}
        yield self, tuple(layer for layer in layers if layer not in excluded)
        for product, exception_layers in exceptions:
            roles = (*(entry for entry in self.roles if entry[0] != role), (role, product))
            shared = tuple(layer for layer in layers if layer in exception_layers)
            yield structs.replace(self, roles=roles), shared

    def with_products(self, change: Callable[[Product, str], Product]) -> "Precision":
        """Return this precision with the formats of all products changed.

        Parameters
        ----------
        change
            Takes a product's formats and its kind of matrix, and returns the new formats.
        """
        products = {kind: change(getattr(self, kind), kind) for kind in QUANTISED}
        roles = tuple((role, change(product, "attention")) for role, product in self.roles)
        apart = tuple(
            (role, change(product, "attention"), layers)
            for role, product, layers in self.apart or ()
        )
        return structs.replace(self, roles=roles, apart=apart or UNSET, **products)

    def formats_of(self, kind: str, role: str) -> Product:
        """Return the formats of a product, given its kind of matrix and its role in a forward."""
        formats: Product = dict(self.roles).get(role) or getattr(self, kind)
        return formats

    @property
    def products(self) -> tuple[tuple[str, Product], ...]:
        """Kind of matrix and formats of every product, including exceptions by role."""
        kinds = ((kind, getattr(self, kind)) for kind in QUANTISED)
        single_roles = (product for _, product, *_ in (*self.roles, *(self.apart or ())))
        return (*kinds, *(("attention", product) for product in single_roles))

    def named_formats(self, kind: str) -> dict[str, Dtype]:
        """Return the formats that name a precision: those of the kind with most weights, and kv."""
        weights, activations = getattr(self, kind)
        return {"weights": weights, "activations": activations, "kv": self.kv}


def uniform(dtype: Dtype) -> Precision:
    """Return the precision with one format for everything."""
    products: dict[str, Any] = dict.fromkeys(QUANTISED, Product(dtype, dtype))
    return Precision(plain=dtype, kv=dtype, **products)


_OTHER_FIELDS = ("plain", "kv", "roles", "apart")
QUANTISED = tuple(name for name in Precision.__struct_fields__ if name not in _OTHER_FIELDS)
"""The kinds of matrices that can be quantised, as fields of a precision."""
UNQUANTISED = ("router", "lm_head")
"""The kinds of matrices that engines do not quantise."""
_WEIGHT_ONLY = ("int4", "mxfp4")
_EIGHT_BIT_FLOATS: tuple[Dtype, ...] = ("float8", "float8_block", "mxfp8")
UNPACKED: dict[Dtype, tuple[Dtype, ...]] = {
    **dict.fromkeys(_EIGHT_BIT_FLOATS, _EIGHT_BIT_FLOATS),
    **dict.fromkeys(("nvfp4", "mxfp4"), _EIGHT_BIT_FLOATS),
    "int4": (*_EIGHT_BIT_FLOATS, "int8"),
}
"""Formats with scales to which stored weights can be unpacked for a product, besides the plain
formats. A tensor core multiplies numbers of one type, so every stored value must be exact in that
type. int8 does not fit into float8, whose numbers have 4 significant bits."""


class Override(Struct, frozen=True, kw_only=True):
    """The user's formats in place of the model's own; `dtype` stands for all three others."""

    dtype: Dtype | None = None
    weights: Dtype | None = None
    activations: Dtype | None = None
    kv: Dtype | None = None

    @property
    def stores_all(self) -> bool:
        """Whether it sets the stored format of all weights, independent of the model's files."""
        return (self.weights or self.dtype) is not None

    def apply(self, model_precision: Precision) -> Precision:
        """Return a model's precision with this override applied.

        A plain format holds for the whole forward. A format with scales holds for the matrices that
        engines quantise, which excludes the router and the LM head. If only `weights` is set,
        products are computed in the same format; int4 and mxfp4 are unpacked to the plain one.

        Raises
        ------
        ConfigError
            Quantised activations would meet plain weights alone, or quantised weights cannot be
            unpacked to the activations' format.
        """
        base = uniform(self.dtype) if self.dtype in PLAIN else model_precision
        weights = self.weights or self.dtype
        activations = self.activations or self.dtype

        def overridden(product: Product, kind: str) -> Product:
            weights_format, input_format = product
            if weights and (weights in PLAIN or kind not in UNQUANTISED):
                weights_format = weights
                input_format = base.plain if weights in (*_WEIGHT_ONLY, *PLAIN) else weights
            if activations and (weights_format not in PLAIN or activations in PLAIN):
                input_format = activations
            return Product(weights_format, input_format)

        precision = base.with_products(overridden)
        inputs = {product.activations for _, product in precision.products}
        if activations and activations not in PLAIN and activations not in inputs:
            raise ConfigError(
                f"{precision.ffn.weights} weights enter no product with {activations}",
                remedy=f"Give --weights {activations}, or --activations {base.plain}",
            )
        for _, (weights_format, input_format) in precision.products if activations else ():
            accepted = (weights_format, *UNPACKED.get(weights_format, ()), *PLAIN)
            if weights_format not in PLAIN and input_format not in accepted:
                raise ConfigError(
                    f"{weights_format} weights enter no product with {input_format}: "
                    "no kernel multiplies them",
                    remedy=f"Give --activations {', '.join(dict.fromkeys(accepted))}",
                )
        return structs.replace(precision, kv=self.kv or self.dtype or base.kv)
