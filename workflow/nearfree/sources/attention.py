"""A query to an attention backend, the facts that its rules read, and their answers."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from nearfree.errors import EvidenceError
from nearfree.log.events import Branch
from nearfree.sources.language.rule import Answer, Rule
from nearfree.sources.language.statements import REFUSED


class AttentionQuery(Struct, frozen=True, kw_only=True):
    """One attention call: `batch` requests, each with some positions over `context` tokens.

    `sm` is the compute capability (90 for 9.0), `sms` the number of SMs; facts that a backend's
    rule does not read may be None. `capture_positions` is the number of positions of the captured
    CUDA graph, None without one; `page_size` the tokens per page of a paged cache, None if unknown;
    `kv_bytes` the bytes per element of the cache. A position attends to the last `window` positions
    up to its own, to all if `window` is None.
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


def cache_capacity(keys: Any, page: int | None) -> Any:
    """Return the keys that a cache has space for: `keys`, rounded up to whole pages."""
    return -(-keys // page) * page if page else keys


class Point(NamedTuple):
    """What differs between the points of a surface: integers, or arrays of integers."""

    positions: Any
    batch: Any
    context: Any


class RuleQuery(NamedTuple):
    """A rule that gives a tile, by name, and the facts for it."""

    name: str
    facts: Mapping[str, Any]


class Tile(Struct, frozen=True, kw_only=True):
    """How a backend tiles the queries at one number of positions.

    A tile holds `tile` rows, and a position takes `rows_per_position` of them; so the boundary in
    positions is `tile // rows_per_position`. A request takes `tiles` tiles per head (per key-value
    head, if heads are packed).
    """

    path: str
    tile: int
    rows_per_position: int
    tiles: int
    branches: tuple[Branch, ...]
    """The branches that decided; the first one gives the tile."""
    unsplit: bool = False
    """Whether each tile iterates over all keys of its request: no call splits them over SMs."""

    @classmethod
    def of(
        cls,
        path: str,
        rows: int,
        query_rows: int,
        positions: int,
        *branches: Branch,
        unsplit: bool = False,
    ) -> "Tile":
        """Return the tiles of `rows` rows over positions that take `query_rows` rows each."""
        return cls(
            path=path,
            tile=rows,
            rows_per_position=query_rows,
            tiles=-(-positions * query_rows // rows),
            branches=branches,
            unsplit=unsplit,
        )


FACTS = {
    "sms": "number of SMs",
    "cc_major": "compute capability",
    "cc_minor": "compute capability",
    "smem_per_sm": "compute capability",
    "smem_per_block": "compute capability",
}
"""Users' names of the inputs that a query may leave out."""


VARYING = frozenset(
    {"positions", "batch", "context"}
    | {"qo_len", "batch_size", "total_num_rows", "avg_packed_qo_len"}
)
"""Inputs that differ from point to point: rules are cached specialised for all others."""


def capability(sm: int | None) -> dict[str, int | None]:
    """Return a compute capability's two parts, as rules name them; None each if it is unknown."""
    if sm is None:
        return {"cc_major": None, "cc_minor": None}
    return {"cc_major": sm // 10, "cc_minor": sm % 10}


def point_of(query: AttentionQuery, positions: int) -> Point:
    """Return the point of a call."""
    return Point(positions, query.batch, query.context)


def facts(query: AttentionQuery, point: Point) -> dict[str, Any]:
    """Return the facts of a call, by their names in rules."""
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


def rule_answer(rules: Mapping[str, Rule], name: str, known_facts: Mapping[str, Any]) -> Answer:
    """Return a rule's answer to some facts.

    Raises
    ------
    EvidenceError
        There is no such rule, a fact that it reads is missing, or it gives no kernel.
    """
    if name not in rules:
        raise EvidenceError(
            f"no rule {name} of this release is known",
            remedy="Extract the release's rules, or ask for a case that does not need it",
        )
    rule = rules[name]
    stated = stated_facts(known_facts)
    missing = sorted({FACTS.get(fact, fact) for fact in rule.missing(stated)})
    label = f"{rule.rule.package} {rule.rule.version}: {name}"
    if missing:
        raise EvidenceError(
            f"{label} depends on the {' and the '.join(missing)}, which is not given",
            remedy="Name the device with --device, or give --sm and --sms",
        )
    answer = rule.narrowed(stated, VARYING).value(stated)
    if answer.value is None or answer.value == REFUSED:
        point = ", ".join(f"{fact}={known_facts.get(fact)}" for fact in rule.rule.inputs)
        raise EvidenceError(
            f"{label} launches nothing at {point}",
            remedy="The backend refuses such a call: ask for another",
        )
    return answer


def stated_facts(known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts that a query states.

    A fact that may be left out is dropped if it is None; for any other fact None is a value.
    """
    return {fact: value for fact, value in known.items() if value is not None or fact not in FACTS}


def require_mechanism(rules: Mapping[str, Rule], mechanism: str) -> None:
    """Raise EvidenceError if the source lines of a mechanism are gone from a release."""
    if is_absent(rules, mechanism):
        rule = rules[f"mechanism_{mechanism}"].rule
        raise EvidenceError(
            f"{rule.package} {rule.version}: the lines for {mechanism}, which tie rules to what"
            " runs, are gone",
            remedy="Ask about an earlier release: the new way must be read first",
        )


def is_absent(rules: Mapping[str, Rule], mechanism: str) -> bool:
    """Return whether a release was searched for a mechanism, and lacks it."""
    rule = rules.get(f"mechanism_{mechanism}")
    return rule is not None and rule.value({}).value == "absent"
