"""How routings of tokens to experts are written."""

from typing import Annotated, Literal

from msgspec import Meta

_EXPONENT = r"(?:0|[1-9]\d?)(?:\.\d{0,3}[1-9])?"
POWER_LAW = rf"power_law:{_EXPONENT}"
"""Loads by a power law of an exponent, written without trailing zeros: each has one name."""
Controlled = Annotated[str, Meta(pattern=rf"^(?:balanced|skewed|{POWER_LAW})$(?!\n)")]
"""How an MoE study spreads tokens over experts (paper, app. C.3; `core.modules.routing`)."""
ModelRouting = Literal["balanced", "skewed", "router"]
"""The same in a model, whose own router may decide instead."""
Routing = Annotated[
    str,
    Meta(pattern=rf"^(?:balanced|skewed|router|power_law|{POWER_LAW}|loads:[0-9a-f]{{12}})$(?!\n)"),
]
"""Also a model's own router, and measured loads by the digest of their shares, which stand beside.
`power_law` alone is in earlier imports, whose events name the exponent as the distribution."""
