"""What attention rules are asked with, and their answers, refused where they are none."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from nearfree.errors import EvidenceError
from nearfree.events.types import Branch, RuleExtracted
from nearfree.sources.attention import AttentionQuery
from nearfree.sources.language.interpret import REFUSED
from nearfree.sources.language.rule import Rule

FACTS = {
    "sms": "number of SMs",
    "cc_major": "compute capability",
    "cc_minor": "compute capability",
    "smem_per_sm": "compute capability",
    "smem_per_block": "compute capability",
}


class Answered(NamedTuple):
    """A rule, its value, and the branch that gave it."""

    rule: RuleExtracted
    value: Any
    branch: Branch


def facts(asked: AttentionQuery, positions: int) -> dict[str, Any]:
    """Return what is asked, by the names that rules call it."""
    return {
        "positions": positions,
        "batch": asked.batch,
        "heads": asked.heads,
        "kv_heads": asked.kv_heads,
        "head_dim": asked.head_dim,
        "context": asked.context,
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
            f"the rule {name} is not among those extracted",
            remedy="Extract the release's rules first",
        )
    rule = rules[name]
    who = f"{rule.rule.package} {rule.rule.version}: {name}"
    given = {fact: value for fact, value in known.items() if value is not None}
    for fact in sorted(rule.missing(given)):
        raise EvidenceError(
            f"{who} depends on the {FACTS.get(fact, fact)}, which is not given",
            remedy="Name the device with --device, or give --sm and --sms",
        )
    answer = rule.value(given)
    if answer.value is None or answer.value == REFUSED:
        where = ", ".join(f"{fact}={known.get(fact)}" for fact in rule.rule.inputs)
        raise EvidenceError(
            f"{who} launches nothing at {where}",
            remedy="The backend refuses such a call: ask for another",
        )
    return Answered(rule.rule, answer.value, answer.branch)


def tiles_of(tile: int, rows: int) -> int:
    """Return how many tiles some rows take."""
    return -(-rows // tile)
