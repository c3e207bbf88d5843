"""Parts of a model's matrices with one scheme each, and their totals by kind of matrix."""

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import UNSET, Struct

from nearfree.core.precision import FORMATS, QUANTISED, Precision, Product
from nearfree.decoders.layouts.pieces import OF_ATTENTION, Kind, Matrix
from nearfree.decoders.ranks.attention_uses import (
    GROUPED_OUTPUT,
    LATENT_KEY,
    LATENT_QUERIES,
    LAYER,
    role_of,
    state_role,
)
from nearfree.decoders.ranks.holding import Held, held
from nearfree.decoders.stored.precision import StoredPrecision
from nearfree.decoders.stored.schemes import Scheme
from nearfree.errors import Refusal


class Weights(Struct, frozen=True):
    """Weights of one kind that ranks hold in the same way: elements, and stored bytes with scales.

    `layers` are the layers that have them, in equal shares; empty for weights outside of layers.
    """

    kind: Kind
    elements: int
    size_bytes: float
    how: Held = "cut"
    layers: tuple[int, ...] = ()


class Part(NamedTuple):
    """The elements of a matrix that have one scheme, with their layers if known."""

    matrix: Matrix
    scheme: Scheme
    elements: float
    layers: tuple[int, ...] = ()


def checkpoint_parts(matrix: Matrix, precision: StoredPrecision) -> list[Part]:
    """Return the parts of a matrix by scheme; RefusedError if the files give it none."""
    if matrix.inputs == 1:  # a vector is never quantised
        plain, bits = precision.plain, FORMATS[precision.plain].bits
        scheme = Scheme(weights=plain, activations=plain, bits=bits)
        return [Part(matrix, scheme, matrix.elements)]
    axes = [axis for axis in (matrix.layers, range(matrix.copies)) if axis]
    numbers = axes[: matrix.name.count("*")]
    schemes = precision.fitting(matrix.name, matrix.inputs, *numbers)
    elements = matrix.elements / sum(schemes.values())
    layers = dict.fromkeys(schemes, matrix.layers)
    if len(schemes) > 1:
        layers = dict.fromkeys(schemes, ())
        for layer in matrix.layers if matrix.copies == 1 else ():
            layers[precision.of(matrix.name, [layer])] += (layer,)
    return [
        Part(matrix, scheme, elements * count, layers[scheme]) for scheme, count in schemes.items()
    ]


def weights_of(parts: Sequence[Part]) -> tuple[Weights, ...]:
    """Return elements and bytes by kind, by how ranks hold them, and by layers.

    The products of state mixers count as attention.
    """
    totals: dict[tuple[Kind, Held, tuple[int, ...]], tuple[float, float]] = {}
    latent_queries = any(part.matrix.name.endswith(f".{LATENT_QUERIES}") for part in parts)
    for matrix, scheme, elements, _ in parts:
        kind: Kind = OF_ATTENTION if _belongs(matrix, OF_ATTENTION) else matrix.kind
        how_held = held(matrix.name, matrix.kind, latent_queries=latent_queries)
        key = kind, how_held, matrix.layers
        count, size = totals.get(key, (0.0, 0.0))
        totals[key] = count + elements, size + elements * scheme.bits / 8
    return tuple(
        Weights(kind, round(count), size, how, layers)
        for (kind, how, layers), (count, size) in totals.items()
    )


def groups_of(parts: Sequence[Part]) -> tuple[tuple[str, int, int], ...]:
    """Return for each kind the largest numbers of outputs and inputs that share a scale."""
    largest: dict[str, tuple[int, int]] = {}
    for matrix, scheme, *_ in parts:
        if scheme.group and min(matrix.inputs, matrix.outputs) > 1:
            rows, columns = largest.get(matrix.kind, (1, 1))
            largest[matrix.kind] = max(rows, scheme.rows), max(columns, scheme.group)
    return tuple((kind, *sizes) for kind, sizes in largest.items())


def precision_of(
    parts: Sequence[Part], stored_as: StoredPrecision
) -> tuple[Precision, tuple[Refusal, ...]]:
    """Return the formats of a forward, and why they are not known: kinds that have several.

    Each kind of matrices has the format of most of its elements. Products of attention in other
    formats have their own by role, and by layer if each layer has only one. Nor are they known if
    the method quantises routed experts alone and the model has none.
    """
    mixed, roles = list[Refusal](), list[tuple[str, Product]]()
    if stored_as.of_experts_alone and not any(part.matrix.kind == "experts" for part in parts):
        method = stored_as.quantised.method
        reason = f"is {method!r}, which stores routed experts alone, and the model has none: {_RUN}"
        mixed.append(Refusal(stored_as.file, "quant_method", reason, _OF_DENSE))
    layer_formats = list[tuple[str, Product, tuple[int, ...]]]()
    by_kind = dict[str, Product]()
    plain = Product(stored_as.plain, stored_as.plain)
    for kind in QUANTISED:
        of_kind = [
            part for part in parts if _belongs(part.matrix, kind) and _is_matrix(part.matrix)
        ]
        by_kind[kind] = _usual_product(of_kind) or plain
        for role, of_role in _by_role(of_kind).items():
            examples = {_product(part): part for part in reversed(of_role)}
            usual = _usual_product(of_role)
            layers = {} if role in ("", LAYER) else _by_layer(of_role)
            layer_formats += [
                (role or "", product, layers[product]) for product in layers if product != usual
            ]
            if len(examples) > 1 and not layers:
                stored_in = ", ".join(
                    f"{examples[product].matrix.name} in {product.weights}"
                    for product in reversed(examples)
                )
                reason = f"stores {role or kind} in several formats, which no forward here has: "
                remedy = "Name one for all: --weights, --activations"
                mixed.append(Refusal(stored_as.file, "", reason + stored_in, remedy))
            if role and usual and usual != by_kind[kind]:
                roles.append((role, usual))
    precision = Precision(
        plain=stored_as.plain,
        kv=stored_as.kv or stored_as.plain,
        roles=tuple(roles),
        apart=tuple(layer_formats) or UNSET,
        **by_kind,
    )
    return precision, tuple(mixed)


_RUN = "vLLM runs its products unquantised, SGLang does not start"
_OF_DENSE = (
    "Name what its weights are in, such as --dtype bfloat16, or give a file whose method stores "
    "dense products, such as compressed-tensors"
)


def _by_layer(parts: Sequence[Part]) -> dict[Product, tuple[int, ...]]:
    """Return the layers of each format; empty if a layer has several, or layers are not known."""
    products: dict[int, set[Product]] = {}
    for part in parts:
        for layer in part.layers:
            products.setdefault(layer, set()).add(_product(part))
    if not all(part.layers for part in parts) or any(len(own) > 1 for own in products.values()):
        return {}
    layers: dict[Product, tuple[int, ...]] = {}
    for layer, (product,) in sorted(products.items()):
        layers[product] = (*layers.get(product, ()), layer)
    return layers


def _belongs(matrix: Matrix, kind: str) -> bool:
    """Return whether a matrix is of a kind; products of state mixers count as attention."""
    if kind == OF_ATTENTION and matrix.kind == "state":
        return state_role(matrix.name) is not None
    return matrix.kind == kind


def _is_matrix(matrix: Matrix) -> bool:
    return min(matrix.inputs, matrix.outputs) > 1


def _product(part: Part) -> Product:
    return Product(part.scheme.weights, part.scheme.activations)


def _usual_product(parts: Sequence[Part]) -> Product | None:
    """Return the formats of most elements, None if there are no parts."""
    elements: dict[Product, float] = {}
    for part in parts:
        elements[_product(part)] = elements.get(_product(part), 0.0) + part.elements
    return max(elements, key=lambda product: elements[product], default=None)


def _by_role(parts: Sequence[Part]) -> dict[str, list[Part]]:
    """Return the parts of a kind by their role in attention; other kinds have the role ""."""
    by_role: dict[str, list[Part]] = {}
    latent, compressed = (
        any(part.matrix.name.endswith(f".{key}") for part in parts)
        for key in (LATENT_KEY, GROUPED_OUTPUT)
    )
    for part in parts:
        role: str | None = ""
        if part.matrix.kind == "state":
            role = state_role(part.matrix.name)
        elif part.matrix.kind == OF_ATTENTION:
            role = role_of(part.matrix.name, latent=latent, compressed=compressed)
        if role is not None:
            by_role.setdefault(role, []).append(part)
    return by_role
