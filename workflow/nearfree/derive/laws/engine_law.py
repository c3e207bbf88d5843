"""The laws of a real engine's forward: which of them speak of it, and the principle by its rules.

A forward's rows b N take, for each type of its stored matrices, a path and a number of passes over
them, as the release's source says. By the paper's principle, resolved with rules, N_max is the
largest N up to which no matrix has another path or another number of passes than at the baseline.
"""

from typing import Any

from nearfree.core.modules.kind import smallest
from nearfree.derive.granularity.engine import EngineRules

LOOKED = 512
"""Positions up to which a change is looked for at least; none up to there stands for no limit."""
REFUSED = {
    "idle_compute": "idle compute has one element size and one phi, and an engine's weights have "
    "several formats, each with kernels of its own; principle_resolved and work_model answer",
    "principle": "the paper prints no granularity of an engine on a CPU; principle_resolved reads "
    "it from the release's source",
}
"""Why laws do not speak of an engine's forward, and what does."""


def principle_of_engine(rules: EngineRules, baseline: int, most: int) -> dict[str, Any]:
    """Return N_max, what limits it and where that stands, by the names of an answer.

    The module that limits is `mul_mat TYPE`, of types that change at the same N the heaviest; the
    margin is where the next type changes, over N_max.

    Parameters
    ----------
    most
        The largest N of the grid.

    Raises
    ------
    NearfreeError
        A rule is missing, or the CPU or a type has kernels that are not read.
    """
    changes = rules.first_changes(baseline, max(most, LOOKED))
    if not changes:
        return {
            "n_max": float("inf"),
            "n_max_extended": float("inf"),
            "limiting_module": None,
            "limiting_term": f"no path or number of passes changes up to N = {max(most, LOOKED)}",
            "evidence": rules.release_name,
            "margin": None,
        }
    least = smallest({kind: float(change.n - 1) for kind, change in changes.items()})
    change = changes[least.names[0]]
    return {
        "n_max": least.value,
        "n_max_extended": least.value,
        "limiting_module": f"mul_mat {change.type}",
        "limiting_term": f"{change.path} by the rule {change.rule}, {_passes(change.before)} at "
        f"N = {baseline} and {change.after} at N = {change.n}",
        "evidence": change.place,
        "margin": least.margin,
    }


def _passes(number: int) -> str:
    return f"{number} pass{'es' if number > 1 else ''}"
