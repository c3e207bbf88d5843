"""The building blocks of a layer: weight tensors, cached elements and kinds of attention."""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Literal, NamedTuple

from msgspec import UNSET, Struct, UnsetType

from nearfree.core.precision import Dtype
from nearfree.decoders.attention_kinds import Kind as Attention
from nearfree.decoders.keys import Keys
from nearfree.errors import Refusals

Kind = Literal[
    "attention", "ffn", "experts", "shared_experts", "router", "embedding", "lm_head", "norm",
    "state", "vision", "other",
]  # fmt: skip
"""What a weight tensor belongs to; `state` is linear attention and state space layers."""

OF_ATTENTION: Kind = "attention"


class Matrix(Struct, frozen=True):
    """Equal weight tensors of a model: matrices, or vectors where `inputs` is 1.

    `name` is their module's path in a layer or, with `layers`, in the checkpoint, with `*` for the
    layer and for the expert; the name of a bias is that of its matrix with `.bias`. `inputs` is the
    number of elements that a product sums over; a vector is never quantised. Each of the `layers`,
    counted from 0, has `copies` of the tensor; without layers it is outside of them.
    """

    name: str
    kind: Kind
    inputs: int
    outputs: int
    copies: int = 1
    layers: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        """Number of tensors."""
        return self.copies * max(1, len(self.layers))

    @property
    def elements(self) -> int:
        """Elements of all tensors together."""
        return self.count * self.inputs * self.outputs


class CacheLayer(Struct, frozen=True, kw_only=True):
    """What each of `layers` layers caches, in elements; a layer can have several of these.

    `elements` are cached per position, for the last `window` positions (None: for all).
    `state_elements` are kept per request, whatever its length; `matrices` of them are in
    `matrix_dtype`, or if that is unset in the engine's default, the others in the model's element
    type. With `whole` each rank holds all of it, in the model's element type. Otherwise it is
    divided among ranks by `heads`, 1 where all heads share it; a rank has at least one. `dtype`
    overrides the dtype of the cache. If the cache is in float8, each position takes `more` bytes in
    addition.
    """

    layers: int = 1
    elements: int = 0
    window: int | None = None
    state_elements: int = 0
    matrices: int | UnsetType = UNSET
    matrix_dtype: Dtype | UnsetType = UNSET
    whole: bool | UnsetType = UNSET
    heads: int = 1
    dtype: Dtype | UnsetType = UNSET
    more: float | UnsetType = UNSET


class Piece(NamedTuple):
    """A part of a layer: its weight tensors, what it caches, and its kinds of attention.

    The kinds in `attention` have no layer numbers yet. It is empty where the part does not attend,
    or attends in a form for which there is no forward.
    """

    parts: tuple[Matrix, ...]
    kept: tuple[CacheLayer, ...] = ()
    attention: tuple[Attention, ...] = ()


Layer = Callable[[int], Piece]
"""Returns the piece of a layer by its number, counted from 0."""
Plan = Callable[[Keys, int], Layer]
"""Reads the keys of a file with a number of layers; ConfigError if one is missing or not read."""


def dotted(*names: str) -> str:
    """Return a module's path; empty names are skipped."""
    return ".".join(name for name in names if name)


def linear(
    name: str, kind: Kind, inputs: int, outputs: int, *, bias: bool = False, copies: int = 1
) -> tuple[Matrix, ...]:
    """Return a matrix, and with `bias` its bias as a vector of the same kind."""
    matrix = Matrix(name, kind, inputs, outputs, copies)
    return (matrix, Matrix(f"{name}.bias", kind, 1, outputs, copies)) if bias else (matrix,)


def projection(name: str, inputs: int, outputs: int, *, bias: bool = False) -> tuple[Matrix, ...]:
    """Return a matrix of attention, and with `bias` its bias."""
    return linear(name, OF_ATTENTION, inputs, outputs, bias=bias)


def vector(name: str, size: int, kind: Kind = "norm") -> tuple[Matrix, ...]:
    """Return a vector as the only part."""
    return (Matrix(name, kind, 1, size),)


def in_every_layer(piece: Piece) -> Layer:
    """Return a layer function that gives the same piece for every layer."""
    return lambda layer: piece  # noqa: ARG005 (one signature for all)


def norms(*names: str, bias: bool = False) -> Plan:
    """Return the plan of norms: vectors as wide as the model."""

    def plan(keys: Keys, layers: int) -> Layer:  # noqa: ARG001
        names_with_bias = [
            f"{tensor_name}{end}" for tensor_name in names for end in ("", ".bias")[: 1 + bias]
        ]
        width = keys.whole("hidden_size")
        return in_every_layer(
            Piece(tuple(chain(*(vector(tensor_name, width) for tensor_name in names_with_bias))))
        )

    return plan


def combined(*plans: Plan) -> Plan:
    """Return the plan of layers that have one piece from each of the plans."""

    def plan(keys: Keys, layers: int) -> Layer:
        layers_by_plan, refusals = list[Layer](), Refusals()
        for plan_of_part in plans:
            with refusals.collect():
                layers_by_plan.append(plan_of_part(keys, layers))
        refusals.check()
        return lambda number: joined([plan_of_part(number) for plan_of_part in layers_by_plan])

    return plan


def joined(pieces: Sequence[Piece]) -> Piece:
    """Return pieces merged into one, whose kinds of attention run side by side."""
    return Piece(
        tuple(chain(*(piece.parts for piece in pieces))),
        tuple(chain(*(piece.kept for piece in pieces))),
        tuple(chain(*(piece.attention for piece in pieces))),
    )


def by_kind(
    key: str,
    plans: Mapping[str, Plan],
    default_kinds: Callable[[Keys, int], Sequence[int | str]] | None = None,
    other_keys: Sequence[str] = (),
) -> Plan:
    """Return the plan of layers of several kinds; only the kinds that occur are read.

    `key` holds the kind of each layer; `default_kinds` returns them where the file lacks that key.
    Entries after the last layer belong to layers that predict further tokens (MTP). `other_keys`
    are keys that `default_kinds` reads: where a file has one of them and `key`, both must agree,
    because some engines read one and some the other.
    """

    def plan(keys: Keys, layers: int) -> Layer:
        entries = (
            keys.each(key) if keys.has(key) or not default_kinds else default_kinds(keys, layers)
        )
        if len(entries) < layers:
            raise keys.wrong(key, f"has {len(entries)} entries for {layers} layers")
        kinds = [str(entry) for entry in entries[:layers]]
        if default_kinds and keys.has(key):
            for other in filter(keys.has, other_keys):
                _check_agree(keys, key, other, kinds, default_kinds(keys, layers))
        _check_known(keys, key, kinds, plans)
        read, refusals = dict[str, Layer](), Refusals()
        for kind in sorted(set(kinds)):
            with refusals.collect():
                read[kind] = plans[kind](keys, layers)
        refusals.check()
        return lambda number: read[kinds[number]](number)

    return plan


_MOST_NAMED = 8


def _check_known(keys: Keys, key: str, kinds: Sequence[str], plans: Mapping[str, Plan]) -> None:
    """Refuse layers whose kind has no plan; the message names kind and layer."""
    unknown = [(layer, kind) for layer, kind in enumerate(kinds) if kind not in plans]
    if unknown:
        named = [f"{kind!r:.40} of layer {layer}" for layer, kind in unknown[:_MOST_NAMED]]
        more = [f"{len(unknown) - len(named)} more"] if unknown[_MOST_NAMED:] else []
        why = f"has kinds that are not read: {', '.join(named + more)}"
        raise keys.wrong(key, why, f"Read are {', '.join(plans)}")


def _check_agree(
    keys: Keys, key: str, other: str, kinds: Sequence[str], other_kinds: Sequence[int | str]
) -> None:
    """Refuse two keys that give a layer different kinds."""
    for layer, (kind, other_kind) in enumerate(zip(kinds, other_kinds, strict=False)):
        if kind != str(other_kind):
            why = f"says {kind!r:.40} of layer {layer}, and {other} says {other_kind!r:.40}"
            raise keys.wrong(key, why, "Leave one of them out")


def one_per_period(
    period: int | str, kind: str, others: str, *, offset: str | None = None, default: int = 1
) -> Callable[[Keys, int], Sequence[str]]:
    """Return the rule by which one layer of each period is of `kind`, and the rest of `others`.

    It is the last layer of the period, or the one at `offset`, which is the key of a number counted
    from 0. `period` is a number, or the key of one, whose value is `default` if the file lacks it.
    """

    def kinds(keys: Keys, layers: int) -> Sequence[str]:
        step = keys.whole(period, default=default) if isinstance(period, str) else period
        position = keys.whole(offset, least=0) if offset else step - 1
        return [kind if layer % step == position else others for layer in range(layers)]

    return kinds


def flag(keys: Keys, key_or_flag: str | bool) -> bool:  # noqa: FBT001
    """Return a fixed flag, or the flag under a key."""
    return keys.flag(key_or_flag) if isinstance(key_or_flag, str) else key_or_flag
