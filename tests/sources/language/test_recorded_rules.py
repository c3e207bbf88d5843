"""Every recorded rule answers as Python reads its text."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nearfree.errors import NearfreeError
from nearfree.log.events import RuleExtracted
from nearfree.log.evidence import read_scope
from nearfree.log.names import Layout
from nearfree.sources.language.expressions import same
from nearfree.sources.language.functions import BUILTINS
from nearfree.sources.language.rule import Rule
from nearfree.sources.language.statements import REFUSED

ROOT = Path(__file__).parents[3]
RULES = {
    (
        rule.inputs,
        tuple((branch.when, branch.value) for branch in rule.branches),
        rule.functions,
    ): rule
    for take in read_scope(Layout(ROOT / "results"), "sources")
    for rule in (event.data for event in take.events_of(RuleExtracted))
    if rule.inputs
}
"""Rules by their texts, of which releases share most."""
SIZES = st.sampled_from([1, 2, 3, 8, 16, 64, 90, 128, 132, 300]) | st.integers(0, 70_000)
LISTED = st.sampled_from([1, 2, 3, 8, 16, 64, 90, 128, 132, 300]) | st.integers(0, 16_000)
"""Sizes whose lists of captured graphs are no longer than a list may be."""
OWN: dict[str, st.SearchStrategy[Any]] = {
    "dtype": st.sampled_from([None, "fp8_w8a8", "int4_w4a16", "float32"]),
    "block_shape": st.sampled_from([None, (128, 128), (0, 64)]),
    "device": st.sampled_from(["NVIDIA H200", "NVIDIA H20"]),
    "cuda": st.sampled_from([(12, 3), (11, 8)]),
    "activation": st.sampled_from(["SILU", "SWIGLUOAI"]),
    "cc_major": st.sampled_from([7, 8, 9, 10]),
    "cc_minor": st.sampled_from([0, 6, 9]),
    "arch": st.sampled_from([80, 86, 90]),
    "head_dim": st.sampled_from([64, 100, 128, 192, 256, 512]),
    "positions": st.integers(1, 300),
}
FLAGS = ("is_", "use_", "enable_", "paged", "causal", "rocm", "deterministic", "varlen", "pack_gqa")


def inputs_of(rule: RuleExtracted) -> st.SearchStrategy[dict[str, Any]]:
    """Return the inputs that a rule may get."""
    sizes = LISTED if rule.package.endswith("-graphs") else SIZES
    return st.fixed_dictionaries(
        {
            name: OWN.get(name, st.booleans() if name.startswith(FLAGS) else sizes)
            for name in rule.inputs
        }
    )


@cache
def kept(rule: RuleExtracted) -> Rule:
    """Return a rule, parsed once."""
    return Rule(rule)


@cache
def compiled(text: str) -> Any:
    """Return a recorded text as Python's own code."""
    return compile(text, "<rule>", "eval")


def read(rule: RuleExtracted, inputs: dict[str, Any]) -> Any:
    """Return the values and branches that Python gives for a rule's text."""
    names: dict[str, Any] = {"__builtins__": {"ValueError": ValueError}} | BUILTINS
    for text in rule.functions:
        exec(text, names)  # noqa: S102  # recorded by this repository
    held: dict[str, bool] = {}
    rules_read = []
    for branch in rule.branches:
        for text in branch.when:
            if text not in held:
                held[text] = bool(eval(compiled(text), names, inputs))  # noqa: S307
            if not held[text]:
                break
        else:
            rules_read.append((eval(compiled(branch.value), names, inputs), branch))  # noqa: S307
    return rules_read


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: f"{rule.package}-{rule.rule}")
@settings(deadline=None, max_examples=6)
@given(data=st.data())
def test_a_recorded_rule_answers_as_it_reads(rule: RuleExtracted, data: st.DataObject) -> None:
    """Value, type and branch are those of the text, specialised, too."""
    inputs = data.draw(inputs_of(rule))
    settled = {name: inputs[name] for name in rule.inputs if data.draw(st.booleans())}
    ready = kept(rule)
    for variant in (ready, ready.specialised(settled), ready.narrowed(inputs, ("positions", "M"))):
        try:
            ((value, branch),) = read(rule, inputs)
        except (ValueError, TypeError, ArithmeticError, AssertionError, NameError):
            with pytest.raises(NearfreeError):
                raise_refusal(variant.value(inputs).value)
            continue
        answer = variant.value(inputs)
        assert same(answer.value, value)
        assert answer.branch == branch


def raise_refusal(value: Any) -> None:
    """Raise where a value is the backend's refusal."""
    if value == REFUSED:
        raise NearfreeError(REFUSED, remedy="")
