"""The colour of each module of a forward, the same in every figure."""

from collections.abc import Sequence

import altair as alt

from nearfree.decoders.modules import (
    ATTENTION,
    BETWEEN,
    DENSE,
    HEAD,
    MOE,
    OUTPUT,
    QKV,
    ROUTER,
    SHARED,
)

_OTHER = "#505050"
ROLES = {
    ATTENTION: "#0072b2",
    DENSE: "#e69f00",
    MOE: "#d55e00",
    SHARED: "#f0e442",
    ROUTER: "#000000",
    QKV: "#56b4e9",
    OUTPUT: "#009e73",
    HEAD: "#cc79a7",
    BETWEEN: _OTHER,
}
"""Colours that colour-blind readers can tell apart, by role."""


def roles(field: str, names: Sequence[str], *, columns: int = 4) -> alt.Color:
    """Return the colours of some modules under a legend, in the order in which they are named.

    Parameters
    ----------
    field
        The field that holds the role, as Altair names it.
    names
        The roles that there are; one that no forward is known to have is grey.
    columns
        Entries side by side in the legend.
    """
    return alt.Color(
        field,
        scale=alt.Scale(domain=list(names), range=[ROLES.get(name, _OTHER) for name in names]),
        legend=alt.Legend(orient="bottom", title=None, columns=columns),
    )
