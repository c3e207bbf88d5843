"""The syntax of routings of tokens to experts."""

from typing import Annotated, Literal

from msgspec import Meta

_EXPONENT = r"(?:0|[1-9]\d?)(?:\.\d{0,3}[1-9])?"
POWER_LAW = rf"power_law:{_EXPONENT}"
"""Power-law loads by their exponent, without trailing zeros, so that each has one name."""
Controlled = Annotated[str, Meta(pattern=rf"^(?:balanced|skewed|{POWER_LAW})$(?!\n)")]
"""The routings that an MoE study can use (paper, app. C.3; `core.modules.routing`)."""
ModelRouting = Literal["balanced", "skewed", "router"]
"""The routings of a model's study; `router` is the model's own router."""
Routing = Annotated[
    str,
    Meta(pattern=rf"^(?:balanced|skewed|router|power_law|{POWER_LAW}|loads:[0-9a-f]{{12}})$(?!\n)"),
]
"""Every routing, including a model's own router, and measured loads by the digest of their shares,
which are stored elsewhere. `power_law` without exponent occurs in earlier imports, whose events
give the exponent as the distribution."""
