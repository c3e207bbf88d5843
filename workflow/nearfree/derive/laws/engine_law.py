"""The laws of a real engine's forward: the refused ones, and the principle by its rules.

The release's source gives, for each type of stored matrices, the path and the number of passes that
the b N rows of a forward take. By the paper's principle, resolved with rules, N_max is the
largest N up to which no matrix has another path or another number of passes than at the baseline.
"""

from typing import Any

from nearfree.core.modules.kind import smallest_term
from nearfree.derive.granularity.engine import EngineRules

LEAST_SEARCHED = 512
"""Positions up to which changes are searched at least; without one there is no limit."""
LAW_REFUSALS = {
    "idle_compute": "idle compute has one element size and one phi, and an engine's weights have "
    "several formats, each with kernels of its own; principle_resolved and work_model answer",
    "principle": "the paper prints no granularity of an engine on a CPU; principle_resolved reads "
    "it from the release's source",
}
"""Why a law has no answer for an engine's forward, and which predictor has."""


def principle_of_engine(rules: EngineRules, baseline: int, most: int) -> dict[str, Any]:
    """Return N_max, its limit and the source of that limit, by the names of an answer.

    The limiting module is `mul_mat TYPE`, or `mul_mat_id TYPE` of experts: the heaviest of the
    products that change first. The margin is the N at which the next ones change, over N_max.
    `most` is the largest N of the grid. Raises NearfreeError if a rule is missing, or there are no
    rules for kernels of the CPU or of a type.
    """
    last = max(most, LEAST_SEARCHED)
    changes = rules.first_changes(baseline, last)
    if not changes:
        return {
            "n_max": float("inf"),
            "n_max_extended": float("inf"),
            "limiting_module": None,
            "limiting_term": f"no path or number of passes changes up to N = {last}",
            "evidence": rules.release_name,
            "margin": None,
        }
    least = smallest_term({kind: float(change.n - 1) for kind, change in changes.items()})
    change = changes[least.names[0]]
    replaced = f" in place of {' and '.join(change.replaced)}" if change.replaced else ""
    return {
        "n_max": least.value,
        "n_max_extended": least.value,
        "limiting_module": change.name,
        "limiting_term": f"{change.path} by the rule {change.rule}{replaced}, "
        f"{_passes(change.before)} at N = {baseline} and {change.after:.3g} at N = {change.n}",
        "evidence": change.place,
        "margin": least.margin,
    }


def _passes(number: float) -> str:
    return f"{number:.3g} pass{'es' if number > 1 else ''}"
