"""A query to an attention backend, the facts that its rules are given, and their answers."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from nearfree.errors import EvidenceError
from nearfree.log.events import Branch, RuleExtracted
from nearfree.sources.language.rule import Rule
from nearfree.sources.language.statements import REFUSED


class AttentionQuery(Struct, frozen=True, kw_only=True):
    """One attention call: `batch` requests, each with some positions over `context` tokens.

    `sm` is the compute capability (90 for 9.0), `sms` the number of SMs; facts that a backend's
    rule does not ask for may be None. `capture_positions` is the number of positions for which a
    CUDA graph was captured, where one is used; `page_size` the tokens of a page of a paged cache,
    where it is known; `kv_bytes` those of an element of the cache. A position sees the last
    `window` ones up to its own, all where it is None.
    """

    heads: int
    kv_heads: int
    head_dim: int
    context: int = 4096
    batch: int = 1
    sm: int | None = None
    sms: int | None = None
    causal: bool = True
    paged: bool = False
    api: Literal["kvcache", "varlen", "dense"] = "kvcache"
    backend: Literal["auto", "fa2", "fa3"] = "auto"
    capture_positions: int | None = None
    page_size: int | None = None
    kv_bytes: int = 2
    window: int | None = None

    @property
    def group(self) -> int:
        """Query heads that share one key-value head."""
        return self.heads // self.kv_heads


def room(keys: Any, page: int | None) -> Any:
    """Return what a cache holds room for: the keys, those of the call included, in pages."""
    return -(-keys // page) * page if page else keys


class Point(NamedTuple):
    """What differs between the points of a surface: whole numbers, or arrays of such."""

    positions: Any
    batch: Any
    context: Any


class RuleQuery(NamedTuple):
    """A rule that gives a tile, by name, and the facts that it is given."""

    name: str
    facts: Mapping[str, Any]


class Tile(Struct, frozen=True, kw_only=True):
    """How a backend tiles the queries at one number of positions.

    A tile holds `tile` rows, of which a position takes `rows_per_position`; so the boundary in
    positions is `tile // rows_per_position`, and a request takes `tiles` tiles for each head (or
    key-value head, where heads are packed).
    """

    path: str
    tile: int
    rows_per_position: int
    tiles: int
    branches: tuple[Branch, ...]
    """The branches that decided, the one that holds the tile first."""
    unsplit: bool = False
    """Whether a tile goes through all keys of its request alone: no call splits them over SMs."""


FACTS = {
    "sms": "number of SMs",
    "cc_major": "compute capability",
    "cc_minor": "compute capability",
    "smem_per_sm": "compute capability",
    "smem_per_block": "compute capability",
}
"""What a user calls the inputs that a question may leave out."""


VARYING = frozenset(
    {"positions", "batch", "context"}
    | {"qo_len", "batch_size", "total_num_rows", "avg_packed_qo_len"}
)
"""Inputs that differ from point to point: a rule is kept specialised for all others."""


class RuleAnswer(NamedTuple):
    """A rule, its value, and the branch that gave it."""

    rule: RuleExtracted
    value: Any
    branch: Branch


def point_of(query: AttentionQuery, positions: int) -> Point:
    """Return the point that a call is at."""
    return Point(positions, query.batch, query.context)


def facts(query: AttentionQuery, point: Point) -> dict[str, Any]:
    """Return the facts of a call, by the names that rules have for them."""
    return {
        "positions": point.positions,
        "batch": point.batch,
        "heads": query.heads,
        "kv_heads": query.kv_heads,
        "head_dim": query.head_dim,
        "context": point.context,
        "sms": query.sms,
        "causal": query.causal,
        "paged": query.paged,
    }


def rule_answer(rules: Mapping[str, Rule], name: str, known: Mapping[str, Any]) -> RuleAnswer:
    """Return what a rule answers.

    Raises
    ------
    EvidenceError
        There is no such rule, a fact that it needs is missing, or it has no kernel to name.
    """
    if name not in rules:
        raise EvidenceError(
            f"no rule {name} of this release is known",
            remedy="Extract the release's rules, or ask for a case that does not need it",
        )
    rule = rules[name]
    given = stated_facts(known)
    missing = sorted({FACTS.get(fact, fact) for fact in rule.missing(given)})
    who = f"{rule.rule.package} {rule.rule.version}: {name}"
    if missing:
        raise EvidenceError(
            f"{who} depends on the {' and the '.join(missing)}, which is not given",
            remedy="Name the device with --device, or give --sm and --sms",
        )
    answer = rule.steady(given, VARYING).value(given)
    if answer.value is None or answer.value == REFUSED:
        where = ", ".join(f"{fact}={known.get(fact)}" for fact in rule.rule.inputs)
        raise EvidenceError(
            f"{who} launches nothing at {where}",
            remedy="The backend refuses such a call: ask for another",
        )
    return RuleAnswer(rule.rule, answer.value, answer.branch)


def stated_facts(known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts that a question states.

    Of a fact that it may leave out, None says that it did; else None is a value.
    """
    return {fact: value for fact, value in known.items() if value is not None or fact not in FACTS}


def require_mechanism(rules: Mapping[str, Rule], mechanism: str) -> None:
    """Do nothing where a mechanism holds, or is not known to be gone.

    Raises
    ------
    EvidenceError
        Its lines were looked for in this release, and are not there.
    """
    if is_absent(rules, mechanism):
        of = rules[f"mechanism_{mechanism}"].rule
        raise EvidenceError(
            f"{of.package} {of.version}: the lines for {mechanism}, which tie rules to what runs, "
            "are gone",
            remedy="Ask about an earlier release: the new way must be read first",
        )


def is_absent(rules: Mapping[str, Rule], mechanism: str) -> bool:
    """Return whether a mechanism was looked for, and is not there."""
    rule = rules.get(f"mechanism_{mechanism}")
    return rule is not None and rule.value({}).value == "absent"


def tiles_of(tile: int, rows: int) -> int:
    """Return how many tiles some rows take."""
    return -(-rows // tile)
