"""All that a model's files say, understood or not: its forward, its precision, what it stores."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct, structs

from nearfree.core.precision import ELEMENT_BYTES, FORMATS, QUANTISED, Precision, Product
from nearfree.decoders.attention_uses import LATENT_KEY, role_of
from nearfree.decoders.config_file import config_file, file_name, find_file, read_decoder
from nearfree.decoders.decoder import Decoder
from nearfree.decoders.holding import Heads, Held, held
from nearfree.decoders.keys import Keys
from nearfree.decoders.pieces import Kind
from nearfree.decoders.precision import StoredPrecision, read_precision
from nearfree.decoders.schemes import Scheme
from nearfree.decoders.text_part import text_part
from nearfree.decoders.weights import CacheLayer, Matrix, Stored, stored
from nearfree.errors import Refusal, Refusals


class Weights(Struct, frozen=True):
    """Weights of a kind that ranks hold alike: elements, and bytes as stored, with scales.

    `layers` are those that have them, each as many; none where they stand outside of layers.
    """

    kind: Kind
    elements: int
    size_bytes: float
    how: Held = "cut"
    layers: tuple[int, ...] = ()


class ModelFile(Struct, frozen=True, kw_only=True):
    """A model as its files describe it.

    `decoder` is None where its forward is not understood; `weights`, `cache` and `precision` are
    empty where it is not known what it stores, or in what. `refusals` say why. `mixed` says which
    kinds of matrices have several formats, of which `precision` has that of most elements. `widest`
    is the most elements that a token's FFN or attention makes, in which routed experts count
    `top_k` times. `groups` are outputs and inputs that share a scale, by kind, where several do.
    """

    name: str
    file: str
    decoder: Decoder | None = None
    precision: Precision | None = None
    weights: tuple[Weights, ...] = ()
    cache: tuple[CacheLayer, ...] = ()
    d_model: int = 0
    vocabulary: int = 0
    layers: int = 0
    widest: int = 0
    heads: Heads = Heads()
    experts: int = 1
    groups: tuple[tuple[str, int, int], ...] = ()
    notes: tuple[str, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    mixed: tuple[Refusal, ...] = ()

    @property
    def main(self) -> str:
        """The kind of matrices that holds most weights: experts, or the FFN."""
        return "experts" if any(each.kind == "experts" for each in self.weights) else "ffn"

    @property
    def parameters(self) -> int:
        """Elements of all weights."""
        return sum(each.elements for each in self.weights)

    def weights_bytes(self, precision: Precision | None) -> float:
        """Return the bytes of all weights, stored in a precision, or as the files say if None.

        What is no matrix of a product, such as embeddings and norms, is stored as the files say.
        """
        return sum(each.size_bytes for each in self.stored(precision))

    def stored(self, precision: Precision | None) -> tuple[Weights, ...]:
        """Return the weights with their bytes in a precision, or as the files say if None."""
        sizes = (self._size(each, precision) for each in self.weights)
        return tuple(
            structs.replace(each, size_bytes=size)
            for each, size in zip(self.weights, sizes, strict=True)
        )

    def _size(self, each: Weights, precision: Precision | None) -> float:
        own, kind = self.precision, each.kind
        if precision is None or precision == own:
            return each.size_bytes
        if kind not in QUANTISED:
            was = ELEMENT_BYTES[own.plain] if own else each.size_bytes / each.elements
            return each.size_bytes * ELEMENT_BYTES[precision.plain] / was
        format_ = getattr(precision, kind).weights
        if own and getattr(own, kind).weights == format_:
            return each.size_bytes
        return each.elements * ELEMENT_BYTES[format_]


def find_model_file(config_folder: Path, model: str) -> ModelFile:
    """Return a model by its name or path; the errors are those of `find_file` and `read_object`."""
    return read_model_file(find_file(config_folder, model))


def read_model_file(path: Path) -> ModelFile:
    """Return all that a model's files say; what is not understood is in `refusals`.

    Parameters
    ----------
    path
        The config.json, or the folder that holds it; hf_quant_config.json beside it is read, too.

    Raises
    ------
    ConfigError
        A file is not there or is no JSON object.
    """
    file, found = config_file(path), Refusals()
    decoder = said = kept = None
    with found.gathered():
        decoder = read_decoder(path)
    with found.gathered():
        said = read_precision(path)
        found.found += said.refusals
    with found.gathered():
        kept = stored(path)
    known = ModelFile(name=file_name(file), file=str(file), decoder=decoder)
    if kept is not None:
        keys = text_part(file).keys
        known = structs.replace(known, **_shape(kept, _top_k(keys), _heads(keys)))
    if kept is not None and said is not None:
        parts, unknown = list[_Part](), Refusals()
        for matrix in kept.weights:
            with unknown.gathered():
                parts += _parts(matrix, said)
        found.found += unknown.found
        if not unknown.found:
            precision, mixed = _precision(parts, said)
            known = structs.replace(
                known,
                weights=_weights(parts),
                precision=precision,
                mixed=mixed,
                groups=_groups(parts),
            )
    return structs.replace(known, refusals=tuple(dict.fromkeys(found.found)))


class _Part(NamedTuple):
    """Elements of a matrix that are in one scheme."""

    matrix: Matrix
    scheme: Scheme
    elements: float


def _parts(matrix: Matrix, said: StoredPrecision) -> list[_Part]:
    """Return the elements of a matrix by scheme; RefusedError where files say none of one."""
    if matrix.inputs == 1:  # a vector is never quantised
        plain = Scheme(weights=said.plain, activations=said.plain, bits=FORMATS[said.plain].bits)
        return [_Part(matrix, plain, matrix.elements)]
    counted = [each for each in (matrix.layers, range(matrix.copies)) if each]
    numbers = counted[: matrix.name.count("*")]
    schemes = said.fitting(matrix.name, matrix.inputs, *numbers)
    each = matrix.elements / sum(schemes.values())
    return [_Part(matrix, scheme, each * count) for scheme, count in schemes.items()]


def _weights(parts: Sequence[_Part]) -> tuple[Weights, ...]:
    """Return elements and bytes by kind, how ranks hold them, and layers."""
    sizes: dict[tuple[Kind, Held, tuple[int, ...]], tuple[float, float]] = {}
    for matrix, scheme, elements in parts:
        alike = matrix.kind, held(matrix.name, matrix.kind), matrix.layers
        count, size = sizes.get(alike, (0.0, 0.0))
        sizes[alike] = count + elements, size + elements * scheme.bits / 8
    return tuple(
        Weights(kind, round(count), size, how, layers)
        for (kind, how, layers), (count, size) in sizes.items()
    )


def _groups(parts: Sequence[_Part]) -> tuple[tuple[str, int, int], ...]:
    """Return kinds with the outputs and inputs that share a scale: the largest of each."""
    found: dict[str, tuple[int, int]] = {}
    for matrix, scheme, _ in parts:
        if scheme.group and min(matrix.inputs, matrix.outputs) > 1:
            rows, columns = found.get(matrix.kind, (1, 1))
            found[matrix.kind] = max(rows, scheme.rows), max(columns, scheme.group)
    return tuple((kind, *sizes) for kind, sizes in found.items())


def _precision(
    parts: Sequence[_Part], said: StoredPrecision
) -> tuple[Precision, tuple[Refusal, ...]]:
    """Return the formats of a forward, by kind that of most elements, and which kinds have more.

    Products of attention that differ have their own, by role.
    """
    mixed, roles = list[Refusal](), list[tuple[str, Product]]()
    products = dict[str, Product]()
    plain = Product(said.plain, said.plain)
    for kind in QUANTISED:
        own = [part for part in parts if part.matrix.kind == kind and _is_matrix(part.matrix)]
        products[kind] = _most(own) or plain
        for role, alike in _by_role(own).items():
            formats = {_product(part): part for part in reversed(alike)}
            if len(formats) > 1:
                stored_in = ", ".join(
                    f"{formats[each].matrix.name} in {each.weights}" for each in reversed(formats)
                )
                reason = f"stores {role or kind} in several formats, which no forward here has: "
                remedy = "Name one for all: --weights, --activations"
                mixed.append(Refusal(said.file, "", reason + stored_in, remedy))
            found = _most(alike)
            if role and found and found != products[kind]:
                roles.append((role, found))
    precision = Precision(
        plain=said.plain, kv=said.kv or said.plain, roles=tuple(roles), **products
    )
    return precision, tuple(mixed)


def _is_matrix(matrix: Matrix) -> bool:
    return min(matrix.inputs, matrix.outputs) > 1


def _product(part: _Part) -> Product:
    return Product(part.scheme.weights, part.scheme.activations)


def _most(parts: Sequence[_Part]) -> Product | None:
    """Return the formats of most elements, None of no parts."""
    formats: dict[Product, float] = {}
    for part in parts:
        formats[_product(part)] = formats.get(_product(part), 0.0) + part.elements
    return max(formats, key=lambda each: formats[each], default=None)


def _by_role(parts: Sequence[_Part]) -> dict[str, list[_Part]]:
    """Return the matrices of a kind by their role in attention; those of other kinds are alike."""
    found: dict[str, list[_Part]] = {}
    latent = any(part.matrix.name.endswith(f".{LATENT_KEY}") for part in parts)
    for part in parts:
        role = role_of(part.matrix.name, latent=latent) if part.matrix.kind == "attention" else ""
        if role is not None:
            found.setdefault(role, []).append(part)
    return found


_TOP_K = ("num_experts_per_tok", "moe_topk", "moe_k", "top_k_experts", "moe_top_k")


def _top_k(keys: Keys) -> int:
    """Return how many experts a token goes to, where a file says it in a known way; else all."""
    named = [key for key in _TOP_K if keys.has(key)]
    return keys.whole(named[0]) if named else 1 << 20


def _heads(keys: Keys) -> Heads:
    """Return a model's heads, where its file says them in the usual way."""
    queries, cached = "num_attention_heads", "num_key_value_heads"
    of = keys.whole(queries) if keys.has(queries) else 1
    latent = keys.has("kv_lora_rank") or not keys.has(cached)
    return Heads(of, 1 if latent else keys.whole(cached))


def _shape(stored: Stored, top_k: int, heads: Heads) -> dict[str, Any]:
    """Return what memory asks of a model's shape."""
    made: dict[tuple[str, int], int] = {}
    for matrix in stored.weights:
        times = min(matrix.copies, top_k) if matrix.kind == "experts" else matrix.copies
        for layer in matrix.layers:
            at = matrix.kind, layer
            made[at] = made.get(at, 0) + times * matrix.outputs
    embedding = next(each for each in stored.weights if each.kind == "embedding")
    return {
        "cache": stored.cache,
        "d_model": embedding.inputs,
        "vocabulary": embedding.outputs,
        "widest": max(made.values(), default=0),
        "heads": heads,
        "experts": max((m.copies for m in stored.weights if m.kind == "experts"), default=1),
        "layers": 1 + max(max(m.layers, default=0) for m in stored.weights),
        "notes": stored.notes,
    }
