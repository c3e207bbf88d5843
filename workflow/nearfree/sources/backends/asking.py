"""Ask an extracted rule with the facts of a question, and say which fact is missing."""

from collections.abc import Mapping
from typing import Any

from nearfree.errors import EvidenceError
from nearfree.sources.language.rule import Answer, Rule


def rule_of(rules: Mapping[str, Rule], name: str, package: str) -> Rule:
    """Return a release's rule of a name.

    Raises
    ------
    EvidenceError
        The release has none.
    """
    if name not in rules:
        raise EvidenceError(
            f"no rule {name} of this release of {package} is known",
            remedy="Extract the release's rules, or ask for a case that does not need it",
        )
    return rules[name]


def answered(rule: Rule, facts: Mapping[str, Any], says: Mapping[str, str]) -> Answer:
    """Return a rule's answer to a question.

    Parameters
    ----------
    rule
        The rule.
    facts
        What is known, by the names of the rule's inputs; an unknown fact is left out.
    says
        What a user calls the inputs that a question may leave out.

    Raises
    ------
    EvidenceError
        The answer depends on a fact that the question leaves out.
    """
    missing = rule.missing(facts)
    if missing:
        asked = sorted({says.get(name, name) for name in missing})
        raise EvidenceError(
            f"{rule.rule.package} {rule.rule.version}: {rule.rule.rule} depends on"
            f" {' and '.join(asked)}, which the question does not say",
            remedy="Name the device with --device, or give --sm and --sms",
        )
    return rule.value(facts)


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
