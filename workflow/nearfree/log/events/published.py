"""Events of what others published: latency curves, boundaries, rules."""

from typing import Literal

from nearfree.core.setting import Setting
from nearfree.log.events.payload import Payload


class LatencyImported(Payload, frozen=True, kw_only=True):
    """A curve T(N) that somebody else measured, and the file and rows that it was read from.

    `n` rises strictly, with `latency_us` beside it. Where the source varies the context instead,
    `contexts` lists L beside each N (all the same), and the setting's own context is the first.
    """

    type_name = "nearfree.latency.imported.v1"
    source: str
    """The release or file that the curve is from."""
    member: str
    """The file inside an archive, or the file itself."""
    member_sha256: str
    platform: str
    setting: Setting
    backend_version: str
    kernel: str | None = None
    """The source's own name for what ran."""
    distribution: str | None = None
    """The source's own name for how tokens were spread, where `routing` does not say it all."""
    n: tuple[int, ...]
    latency_us: tuple[float, ...]
    contexts: tuple[int, ...] | None = None


class BoundaryPublished(Payload, frozen=True, kw_only=True):
    """A boundary that somebody printed: where it stands, and what it speaks of."""

    type_name = "nearfree.boundary.published.v1"
    source: str
    table: str
    row: str
    column: str
    quantity: Literal["n_max", "idle_compute", "principle"]
    setting: Setting
    n_max: float
    platform: str
    epsilon: float | None = None
    noisy: bool = False
    baseline: int = 1
    grid: tuple[int, ...] = ()
    grid_inferred: bool = True
    m_attn: int | None = None


class RulePublished(Payload, frozen=True, kw_only=True):
    """One branch of a block or tile rule as somebody printed it."""

    type_name = "nearfree.rule.published.v1"
    source: str
    table: str
    row: int
    package: str
    versions: str
    path: str
    condition: str
    value: int
