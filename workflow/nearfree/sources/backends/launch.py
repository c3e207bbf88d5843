"""What attention rules are asked with, and their answers, refused where they are none."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from nearfree.errors import EvidenceError
from nearfree.log.events import Branch, RuleExtracted
from nearfree.sources.attention import AttentionQuery, Point
from nearfree.sources.language.interpret import REFUSED
from nearfree.sources.language.rule import Rule

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


class Answered(NamedTuple):
    """A rule, its value, and the branch that gave it."""

    rule: RuleExtracted
    value: Any
    branch: Branch


def point_of(asked: AttentionQuery, positions: int) -> Point:
    """Return the point that a call is at."""
    return Point(positions, asked.batch, asked.context)


def facts(asked: AttentionQuery, point: Point) -> dict[str, Any]:
    """Return what is asked, by the names that rules call it."""
    return {
        "positions": point.positions,
        "batch": point.batch,
        "heads": asked.heads,
        "kv_heads": asked.kv_heads,
        "head_dim": asked.head_dim,
        "context": point.context,
        "sms": asked.sms,
        "causal": asked.causal,
        "paged": asked.paged,
    }


def answered(rules: Mapping[str, Rule], name: str, known: Mapping[str, Any]) -> Answered:
    """Return what a rule answers.

    Raises
    ------
    EvidenceError
        There is no such rule, a fact that it asks for is missing, or it has no kernel to name.
    """
    if name not in rules:
        raise EvidenceError(
            f"no rule {name} of this release is known",
            remedy="Extract the release's rules, or ask for a case that does not need it",
        )
    rule = rules[name]
    given = stated(known)
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
    return Answered(rule.rule, answer.value, answer.branch)


def stated(known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts that a question states.

    Of a fact that it may leave out, None says that it did; else None is a value.
    """
    return {fact: each for fact, each in known.items() if each is not None or fact not in FACTS}


def holding(rules: Mapping[str, Rule], mechanism: str, package: str) -> None:
    """Do nothing where a mechanism holds, or is not known to be gone.

    Raises
    ------
    EvidenceError
        Its lines were looked for in this release, and are not there.
    """
    if is_absent(rules, mechanism):
        raise EvidenceError(
            f"the lines for {mechanism} are gone from this release of {package}",
            remedy="It takes a new kernel path, which must be read first",
        )


def is_absent(rules: Mapping[str, Rule], mechanism: str) -> bool:
    """Return whether a mechanism was looked for, and is not there."""
    rule = rules.get(f"mechanism_{mechanism}")
    return rule is not None and rule.value({}).value == "absent"


def tiles_of(tile: int, rows: int) -> int:
    """Return how many tiles some rows take."""
    return -(-rows // tile)
