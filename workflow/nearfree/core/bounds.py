"""Bounded numbers and texts that events and plans share; a value outside is refused when read."""

from typing import Annotated

from msgspec import Meta

Text = Annotated[str, Meta(min_length=1)]
AtLeastZero = Annotated[float, Meta(ge=0)]
"""A duration, an amount or a load."""
AboveZero = Annotated[float, Meta(gt=0)]
"""A latency or a rate: other values are divided by it."""
Share = Annotated[float, Meta(ge=0, le=1)]
Tolerance = Annotated[float, Meta(gt=0, lt=1)]
"""The epsilon of a boundary N_max(epsilon)."""
