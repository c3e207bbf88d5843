"""Formats of numbers: what an element of each takes in memory, and which peak its products have."""

from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple, get_args

from msgspec import UNSET, Struct, UnsetType, structs

from nearfree.errors import ConfigError

Dtype = Literal[
    "auto", "bfloat16", "float16", "float32", "float8",
    "float8_block", "mxfp8", "int8", "int4", "nvfp4", "mxfp4",
]  # fmt: skip
"""`auto` stands in plans alone: bfloat16 where the machine has it, else float32."""


class Format(Struct, frozen=True):
    """One format: `bits` of an element, and `scale_bits` that `group` elements share.

    A scale of a whole row or matrix is not counted: group 0. `peak` names the FLOP/s of products
    of two matrices in it, as platforms.yaml does.
    """

    bits: int
    peak: str
    group: int = 0
    scale_bits: int = 0

    @property
    def element_bytes(self) -> float:
        """Bytes of an element with its part of a scale, the paper's s."""
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
    name: (1, each.group) for name, each in FORMATS.items() if each.group and name != "float8_block"
}
"""Outputs and inputs of a matrix that share a scale in a format's usual form."""
DTYPES: tuple[Dtype, ...] = tuple(name for name in get_args(Dtype) if name in FORMATS)
"""The formats of numbers."""
ELEMENT_BYTES = {name: format_.element_bytes for name, format_ in FORMATS.items()}
"""Bytes of an element with its part of a scale, the paper's s, by dtype."""
RESULT_BYTES = {name: max(size, 2.0) for name, size in ELEMENT_BYTES.items()}
"""Bytes of an element of what a product writes, by the dtype of what enters it: 16 bits at least,
since engines quantise anew before each product."""
PLAIN: tuple[Dtype, ...] = ("bfloat16", "float16", "float32")
"""The formats that have no scales."""


class Product(NamedTuple):
    """The formats of a product: what its weights are stored in, and what enters it."""

    weights: Dtype
    activations: Dtype


class Precision(Struct, frozen=True, kw_only=True):
    """In what numbers a forward computes, by kind of matrix.

    `plain` is what is never quantised: queries, norms, embeddings, and sums of products; `kv` what
    the cache holds. `attention` has the formats of most of its weights, `roles` those of its
    products that have others, by their role, and `apart` those that some layers have instead of a
    role's, with these layers.
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

    def parted(
        self, role: str, layers: tuple[int, ...]
    ) -> Iterator[tuple["Precision", tuple[int, ...]]]:
        """Yield the layers of a role by its formats, each with a precision that has them."""
        own = [(product, there) for name, product, there in self.apart or () if name == role]
        others = {layer for _, there in own for layer in there}
        yield self, tuple(layer for layer in layers if layer not in others)
        for product, there in own:
            roles = (*(each for each in self.roles if each[0] != role), (role, product))
            shared = tuple(layer for layer in layers if layer in there)
            yield structs.replace(self, roles=roles), shared

    def changed(self, change: Callable[[Product, str], Product]) -> "Precision":
        """Return it with other formats of its products.

        Parameters
        ----------
        change
            Takes the formats of a product and its kind of matrix, and returns what it has instead.
        """
        products = {kind: change(getattr(self, kind), kind) for kind in QUANTISED}
        roles = tuple((role, change(product, "attention")) for role, product in self.roles)
        apart = tuple(
            (role, change(product, "attention"), layers)
            for role, product, layers in self.apart or ()
        )
        return structs.replace(self, roles=roles, apart=apart or UNSET, **products)

    def of(self, kind: str, role: str) -> Product:
        """Return the formats of a product by its kind of matrix and its role in a forward."""
        found: Product = dict(self.roles).get(role) or getattr(self, kind)
        return found

    @property
    def products(self) -> tuple[tuple[str, Product], ...]:
        """All kinds of matrices with their formats, those of single roles among them."""
        every = ((kind, getattr(self, kind)) for kind in QUANTISED)
        others = (product for _, product, *_ in (*self.roles, *(self.apart or ())))
        return (*every, *(("attention", product) for product in others))

    def said(self, kind: str) -> dict[str, Dtype]:
        """Return how a precision is named: by the kind of matrices that holds most weights."""
        weights, activations = getattr(self, kind)
        return {"weights": weights, "activations": activations, "kv": self.kv}


def uniform(dtype: Dtype) -> Precision:
    """Return the precision of a forward that has one format throughout."""
    every: dict[str, Any] = dict.fromkeys(QUANTISED, Product(dtype, dtype))
    return Precision(plain=dtype, kv=dtype, **every)


_NO_KIND = ("plain", "kv", "roles", "apart")
QUANTISED = tuple(name for name in Precision.__struct_fields__ if name not in _NO_KIND)
"""The kinds of matrices, as fields of a precision."""
LEFT_PLAIN = ("router", "lm_head")
"""The kinds that engines leave as they are where weights are quantised."""
_WEIGHT_ONLY = ("int4", "mxfp4")
_OF_EIGHT_BITS: tuple[Dtype, ...] = ("float8", "float8_block", "mxfp8")
UNPACKED: dict[Dtype, tuple[Dtype, ...]] = {
    **dict.fromkeys(_OF_EIGHT_BITS, _OF_EIGHT_BITS),
    **dict.fromkeys(("nvfp4", "mxfp4"), _OF_EIGHT_BITS),
    "int4": (*_OF_EIGHT_BITS, "int8"),
}
"""As what other formats with scales weights enter products, beside the plain ones: a tensor core
multiplies numbers of one type, and every stored value is one of the other format, too. Those of
int8 are none of float8, whose numbers have 4 significant bits."""


class Override(Struct, frozen=True, kw_only=True):
    """What a user asks for instead of what a model's files say; `dtype` stands for all three."""

    dtype: Dtype | None = None
    weights: Dtype | None = None
    activations: Dtype | None = None
    kv: Dtype | None = None

    @property
    def stores_all(self) -> bool:
        """Whether it says what all weights are stored in, whatever a model's files say."""
        return (self.weights or self.dtype) is not None

    def of(self, own: Precision) -> Precision:
        """Return a model's precision with what is asked for instead.

        A format without scales holds for the whole forward, another one for what engines quantise:
        neither the router nor the LM head. Where weights alone are named they enter products of
        their own format, and int4 and mxfp4 are unpacked to the plain one.

        Raises
        ------
        ConfigError
            What enters the products would have fewer bits than plain weights, or is nothing as
            which quantised weights enter one.
        """
        base = uniform(self.dtype) if self.dtype in PLAIN else own
        weights = self.weights or self.dtype
        activations = self.activations or self.dtype

        def asked(product: Product, kind: str) -> Product:
            stored, entering = product
            if weights and (weights in PLAIN or kind not in LEFT_PLAIN):
                stored = weights
                entering = base.plain if weights in (*_WEIGHT_ONLY, *PLAIN) else weights
            if activations and (stored not in PLAIN or activations in PLAIN):
                entering = activations
            return Product(stored, entering)

        found = base.changed(asked)
        taken = {product.activations for _, product in found.products}
        if activations and activations not in PLAIN and activations not in taken:
            raise ConfigError(
                f"{found.ffn.weights} weights enter no product with {activations}",
                remedy=f"Give --weights, too, such as --weights {activations}",
            )
        for _, (stored, entering) in found.products if activations else ():
            takes = (stored, *UNPACKED.get(stored, ()), *PLAIN)
            if stored not in PLAIN and entering not in takes:
                raise ConfigError(
                    f"{stored} weights enter no product with {entering}: no kernel multiplies them",
                    remedy=f"Give --activations {', '.join(dict.fromkeys(takes))}",
                )
        return structs.replace(found, kv=self.kv or self.dtype or base.kv)
