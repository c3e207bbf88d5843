"""Parts of a model's matrices that are in one scheme, and what they come to by kind of matrix."""

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import UNSET, Struct

from nearfree.core.precision import FORMATS, QUANTISED, Precision, Product
from nearfree.decoders.attention_uses import GROUPED_OUTPUT, LATENT_KEY, LAYER, role_of, state_role
from nearfree.decoders.holding import Held, held
from nearfree.decoders.pieces import Kind
from nearfree.decoders.precision import StoredPrecision
from nearfree.decoders.schemes import Scheme
from nearfree.decoders.weights import Matrix
from nearfree.errors import Refusal


class Weights(Struct, frozen=True):
    """Weights of a kind that ranks hold alike: elements, and bytes as stored, with scales.

    `layers` are those that have them, each as many; none where they stand outside of layers.
    """

    kind: Kind
    elements: int
    size_bytes: float
    how: Held = "cut"
    layers: tuple[int, ...] = ()


class Part(NamedTuple):
    """Elements of a matrix that are in one scheme, with the layers that have them if known."""

    matrix: Matrix
    scheme: Scheme
    elements: float
    layers: tuple[int, ...] = ()


def checkpoint_parts(matrix: Matrix, said: StoredPrecision) -> list[Part]:
    """Return the elements of a matrix by scheme; RefusedError where files say none of one."""
    if matrix.inputs == 1:  # a vector is never quantised
        plain = Scheme(weights=said.plain, activations=said.plain, bits=FORMATS[said.plain].bits)
        return [Part(matrix, plain, matrix.elements)]
    counted = [each for each in (matrix.layers, range(matrix.copies)) if each]
    numbers = counted[: matrix.name.count("*")]
    schemes = said.fitting(matrix.name, matrix.inputs, *numbers)
    each = matrix.elements / sum(schemes.values())
    layers = dict.fromkeys(schemes, matrix.layers)
    if len(schemes) > 1:
        layers = dict.fromkeys(schemes, ())
        for layer in matrix.layers if matrix.copies == 1 else ():
            layers[said.of(matrix.name, [layer])] += (layer,)
    return [Part(matrix, scheme, each * count, layers[scheme]) for scheme, count in schemes.items()]


def weights_of(parts: Sequence[Part]) -> tuple[Weights, ...]:
    """Return elements and bytes by kind, how ranks hold them, and layers.

    Products about a state are among those of attention.
    """
    sizes: dict[tuple[Kind, Held, tuple[int, ...]], tuple[float, float]] = {}
    for matrix, scheme, elements, _ in parts:
        kind: Kind = "attention" if _belongs(matrix, "attention") else matrix.kind
        alike = kind, held(matrix.name, matrix.kind), matrix.layers
        count, size = sizes.get(alike, (0.0, 0.0))
        sizes[alike] = count + elements, size + elements * scheme.bits / 8
    return tuple(
        Weights(kind, round(count), size, how, layers)
        for (kind, how, layers), (count, size) in sizes.items()
    )


def groups_of(parts: Sequence[Part]) -> tuple[tuple[str, int, int], ...]:
    """Return kinds with the outputs and inputs that share a scale: the largest of each."""
    found: dict[str, tuple[int, int]] = {}
    for matrix, scheme, *_ in parts:
        if scheme.group and min(matrix.inputs, matrix.outputs) > 1:
            rows, columns = found.get(matrix.kind, (1, 1))
            found[matrix.kind] = max(rows, scheme.rows), max(columns, scheme.group)
    return tuple((kind, *sizes) for kind, sizes in found.items())


def precision_of(
    parts: Sequence[Part], said: StoredPrecision
) -> tuple[Precision, tuple[Refusal, ...]]:
    """Return the formats of a forward, by kind that of most elements, and which kinds have more.

    Products of attention that differ have their own, by role, and by layer where each has one.
    """
    mixed, roles = list[Refusal](), list[tuple[str, Product]]()
    apart = list[tuple[str, Product, tuple[int, ...]]]()
    products = dict[str, Product]()
    plain = Product(said.plain, said.plain)
    for kind in QUANTISED:
        own = [part for part in parts if _belongs(part.matrix, kind) and _is_matrix(part.matrix)]
        products[kind] = _most(own) or plain
        for role, alike in _by_role(own).items():
            formats = {_product(part): part for part in reversed(alike)}
            found, layers = _most(alike), {} if role in ("", LAYER) else _by_layer(alike)
            apart += [(role or "", each, layers[each]) for each in layers if each != found]
            if len(formats) > 1 and not layers:
                stored_in = ", ".join(
                    f"{formats[each].matrix.name} in {each.weights}" for each in reversed(formats)
                )
                reason = f"stores {role or kind} in several formats, which no forward here has: "
                remedy = "Name one for all: --weights, --activations"
                mixed.append(Refusal(said.file, "", reason + stored_in, remedy))
            if role and found and found != products[kind]:
                roles.append((role, found))
    precision = Precision(
        plain=said.plain, kv=said.kv or said.plain, roles=tuple(roles), apart=tuple(apart) or UNSET,
        **products,
    )  # fmt: skip
    return precision, tuple(mixed)


def _by_layer(parts: Sequence[Part]) -> dict[Product, tuple[int, ...]]:
    """Return the layers of each format; none where one has several, or where it is not known."""
    found: dict[int, set[Product]] = {}
    for part in parts:
        for layer in part.layers:
            found.setdefault(layer, set()).add(_product(part))
    if not all(part.layers for part in parts) or any(len(each) > 1 for each in found.values()):
        return {}
    layers: dict[Product, tuple[int, ...]] = {}
    for layer, (format_,) in sorted(found.items()):
        layers[format_] = (*layers.get(format_, ()), layer)
    return layers


def _belongs(matrix: Matrix, kind: str) -> bool:
    """Return whether a matrix is of a kind: products about a state are among attention's."""
    beside = kind == "attention" and matrix.kind == "state"
    return matrix.kind == kind or (beside and state_role(matrix.name) is not None)


def _is_matrix(matrix: Matrix) -> bool:
    return min(matrix.inputs, matrix.outputs) > 1


def _product(part: Part) -> Product:
    return Product(part.scheme.weights, part.scheme.activations)


def _most(parts: Sequence[Part]) -> Product | None:
    """Return the formats of most elements, None of no parts."""
    formats: dict[Product, float] = {}
    for part in parts:
        formats[_product(part)] = formats.get(_product(part), 0.0) + part.elements
    return max(formats, key=lambda each: formats[each], default=None)


def _by_role(parts: Sequence[Part]) -> dict[str, list[Part]]:
    """Return the matrices of a kind by their role in attention; those of other kinds are alike."""
    found: dict[str, list[Part]] = {}
    latent, compressed = (
        any(part.matrix.name.endswith(f".{key}") for part in parts)
        for key in (LATENT_KEY, GROUPED_OUTPUT)
    )
    for part in parts:
        role: str | None = ""
        if part.matrix.kind == "state":
            role = state_role(part.matrix.name)
        elif part.matrix.kind == "attention":
            role = role_of(part.matrix.name, latent=latent, compressed=compressed)
        if role is not None:
            found.setdefault(role, []).append(part)
    return found
