"""What layers of models are composed of: weight tensors, and what each keeps of a request."""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Literal, NamedTuple

from nearfree.core.precision import Dtype
from nearfree.decoders.attention_kinds import Kind as Attention
from nearfree.decoders.keys import Keys
from nearfree.errors import Refusals

Kind = Literal[
    "attention", "ffn", "experts", "shared_experts", "router", "embedding", "lm_head", "norm",
    "state", "vision", "other",
]  # fmt: skip
"""What a weight tensor belongs to; `state` is linear attention and state space layers."""


class Part(NamedTuple):
    """`copies` weight tensors of one shape: matrices, or vectors where `inputs` is 1."""

    name: str
    kind: Kind
    inputs: int
    outputs: int
    copies: int = 1


class Kept(NamedTuple):
    """Elements that a layer keeps of each of the last `window` positions, and of each request.

    `window` None stands for all positions. Of the `state` of a request `matrices` elements are in
    `matrix_dtype`, None where an engine decides on it; all others are in the model's element type.
    What is kept `whole` each rank keeps, in the model's element type; the rest is parted by
    `heads`, one of what all heads share. Elements are in `dtype` whatever the rest of the cache is
    in, None in what that is in; `more` are the bytes that come to a position of a cache in float8.
    """

    elements: int = 0
    window: int | None = None
    state: int = 0
    matrices: int = 0
    matrix_dtype: Dtype | None = None
    whole: bool = False
    heads: int = 1
    dtype: Dtype | None = None
    more: float = 0.0


class Piece(NamedTuple):
    """A part of a layer: its weight tensors, what it keeps, and how it attends, if it does.

    `attention` has a kind for each way, without layers; none, too, of a form that no forward has.
    """

    parts: tuple[Part, ...]
    kept: tuple[Kept, ...] = ()
    attention: tuple[Attention, ...] = ()


Layer = Callable[[int], Piece]
"""Gives the piece of a layer by its number, from 0."""
Plan = Callable[[Keys, int], Layer]
"""Reads the keys of a file, given its layers; ConfigError if one is missing or not understood."""


def under(*names: str) -> str:
    """Return a module's path; empty names are none."""
    return ".".join(name for name in names if name)


def linear(
    name: str, kind: Kind, inputs: int, outputs: int, *, bias: bool = False, copies: int = 1
) -> tuple[Part, ...]:
    """Return a matrix, and its bias as a vector of its kind."""
    matrix = Part(name, kind, inputs, outputs, copies)
    return (matrix, Part(f"{name}.bias", kind, 1, outputs, copies)) if bias else (matrix,)


def vector(name: str, size: int, kind: Kind = "norm") -> tuple[Part, ...]:
    """Return a vector."""
    return (Part(name, kind, 1, size),)


def same(piece: Piece) -> Layer:
    """Return what gives the same piece for every layer."""
    return lambda layer: piece  # noqa: ARG005 (one signature for all)


def norms(*names: str, bias: bool = False) -> Plan:
    """Return the plan of vectors as wide as the model."""

    def plan(keys: Keys, layers: int) -> Layer:  # noqa: ARG001
        each = [f"{name}{end}" for name in names for end in ("", ".bias")[: 1 + bias]]
        width = keys.whole("hidden_size")
        return same(Piece(tuple(chain(*(vector(name, width) for name in each)))))

    return plan


def together(*plans: Plan) -> Plan:
    """Return the plan of layers that have a piece of each."""

    def plan(keys: Keys, layers: int) -> Layer:
        read, found = list[Layer](), Refusals()
        for each in plans:
            with found.collect():
                read.append(each(keys, layers))
        found.check()
        return lambda number: joined([each(number) for each in read])

    return plan


def joined(pieces: Sequence[Piece]) -> Piece:
    """Return pieces as one, which attends in all of their ways side by side."""
    return Piece(
        tuple(chain(*(piece.parts for piece in pieces))),
        tuple(chain(*(piece.kept for piece in pieces))),
        tuple(chain(*(piece.attention for piece in pieces))),
    )


def by_kind(
    key: str,
    plans: Mapping[str, Plan],
    otherwise: Callable[[Keys, int], Sequence[int | str]] | None = None,
    beside: Sequence[str] = (),
) -> Plan:
    """Return the plan of layers of several kinds, of which only those that occur are read.

    `key` holds the kind of each layer; `otherwise` says them where it is not there. Entries behind
    the last layer are those of layers that predict further tokens. Where a file says one of the
    keys `beside`, too, which `otherwise` reads, both must agree: engines read either of them.
    """

    def plan(keys: Keys, layers: int) -> Layer:
        found = keys.each(key) if keys.has(key) or not otherwise else otherwise(keys, layers)
        if len(found) < layers:
            raise keys.wrong(key, f"has {len(found)} entries for {layers} layers")
        kinds = [str(each) for each in found[:layers]]
        if otherwise and keys.has(key):
            for each in filter(keys.has, beside):
                _check_agree(keys, key, each, kinds, otherwise(keys, layers))
        _check_known(keys, key, kinds, plans)
        read, refused = dict[str, Layer](), Refusals()
        for kind in sorted(set(kinds)):
            with refused.collect():
                read[kind] = plans[kind](keys, layers)
        refused.check()
        return lambda number: read[kinds[number]](number)

    return plan


_MOST_NAMED = 8


def _check_known(keys: Keys, key: str, kinds: Sequence[str], known: Mapping[str, Plan]) -> None:
    """Refuse layers of kinds that are not known, by kind and layer."""
    strange = [(layer, kind) for layer, kind in enumerate(kinds) if kind not in known]
    if strange:
        named = [f"{kind!r:.40} of layer {layer}" for layer, kind in strange[:_MOST_NAMED]]
        more = [f"{len(strange) - len(named)} more"] if strange[_MOST_NAMED:] else []
        why = f"has kinds that are not read: {', '.join(named + more)}"
        raise keys.wrong(key, why, f"Read are {', '.join(known)}")


def _check_agree(
    keys: Keys, key: str, other: str, kinds: Sequence[str], also: Sequence[int | str]
) -> None:
    """Refuse two keys that say different kinds of a layer."""
    for layer, (one, two) in enumerate(zip(kinds, also, strict=False)):
        if one != str(two):
            why = f"says {one!r:.40} of layer {layer}, and {other} says {two!r:.40}"
            raise keys.wrong(key, why, "Leave one of them out")


def every(
    period: int | str, kind: str, others: str, *, offset: str | None = None, default: int = 1
) -> Callable[[Keys, int], Sequence[str]]:
    """Return the rule by which the last layer of each period is of a kind, or its `offset`-th.

    `period` is a number or the key of one, `default` where the file leaves it out; `offset` is the
    key of a number from 0.
    """

    def kinds(keys: Keys, layers: int) -> Sequence[str]:
        step = keys.whole(period, default=default) if isinstance(period, str) else period
        at = keys.whole(offset, least=0) if offset else step - 1
        return [kind if layer % step == at else others for layer in range(layers)]

    return kinds


def flag(keys: Keys, which: str | bool) -> bool:  # noqa: FBT001
    """Return a fixed truth, or the one of a key."""
    return keys.flag(which) if isinstance(which, str) else which
