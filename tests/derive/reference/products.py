"""Curves of one kernel on two GPUs that are not siblings, and questions about its products."""

from typing import Any

import numpy as np
from nearfree.derive.reference.groups import Group, form_us
from nearfree.derive.reference.regimes import GroupTimes, Reference

from derive.reference.made import (
    ROWS,
    by_depth,
    products,
    reference,
)
from derive.work_model.forms import prepared

OURS = reference(*products("h100", "a100"), bent=by_depth)
"""What is known: one kernel of two GPUs that are no siblings."""
BETWEEN = 5632
"""A depth that was not measured."""


def times_of(known: Reference, *questions: dict[str, Any]) -> GroupTimes:
    """Return the times that one set of groups gives for questions."""
    (part,) = prepared(*questions)
    ((rows, times),) = known.times(part)
    assert rows.all()
    return times


def question_with(**changes: Any) -> dict[str, Any]:
    """Return a question about a product, with some changes."""
    return {**ROWS, "d_model": BETWEEN} | changes


def form_of(
    known: Reference, platform: str, question: dict[str, Any], *, ratio: float | None = None
) -> np.ndarray:
    """Return T(N) by the form with the constants of a platform's group, without a residual.

    `ratio` is the balance of the question's chip over the platform's, a sibling.
    """
    (part,) = prepared(question)
    group = group_on(known, platform)
    of_sibling = {} if ratio is None else {"balance_ratio": np.array([[ratio]])}
    return form_us(group.key.family, group.values, {**part.features, **of_sibling})


def group_on(known: Reference, platform: str) -> Group:
    """Return the only group of a platform."""
    (group,) = (item for key, item in known.groups.items() if key.platform == platform)
    return group
