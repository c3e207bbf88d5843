"""Doubts about T(N): quantised dense products that stand on curves of other kernels than theirs."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from nearfree.core.precision import PLAIN
from nearfree.derive.predict.forecast.deployment import DENSE, Deployment
from nearfree.derive.predict.forecast.total import Total
from nearfree.derive.reference.regimes import R0

_DOUBTFUL = 0.2
"""The least share of T(1) of such products that is told."""


class Doubt(NamedTuple):
    """Dense products in a format, with their `share` of T(1), whose own kernel no curve measures.

    They are timed by constants of `kernels`, by shared ones where that is empty, instead of the
    kernel of `backend`.
    """

    weights: str
    share: float
    kernels: tuple[str, ...]
    backend: str

    def __str__(self) -> str:
        """Return the doubt as a sentence without its end."""
        source = f"constants of {', '.join(self.kernels)}" if self.kernels else "shared constants"
        return (
            f"{self.share:.0%} of T(1) are dense products in {self.weights} whose kernel on this "
            f"GPU no public curve measures: they are timed by {source}, and the engine's own "
            f"kernel ({self.backend}) may differ by far, so T(1) has no band"
        )


def doubts(total: Total, deployments: Sequence[Deployment], place: int) -> Iterator[Doubt]:
    """Yield the doubts about one deployment, one for each format that stands on others' kernels."""
    if total.refusals[place] is not None:
        return
    query = deployments[place]
    shares = total.latency_us[place, :, 0] / total.model_us[place, 0]
    settings = {use.role: use.setting for use in query.uses()}
    unmeasured = dict[str, list[tuple[float, tuple[str, ...]]]]()
    for module, role in total.roles[place].items():
        setting = settings.get(role)
        if setting is None or setting.module not in DENSE or total.regimes[place][module] != R0:
            continue
        stored: str = setting.weights or setting.dtype
        if stored not in PLAIN:
            kernels = total.timed.kernels_of(int(total.asked[place, module]))
            unmeasured.setdefault(stored, []).append((float(shares[module]), kernels))
    for weights, parts in unmeasured.items():
        share, (_, kernels) = sum(part for part, _ in parts), max(parts)
        if share >= _DOUBTFUL:
            yield Doubt(weights, share, kernels, str(query.dense or "a library"))


def all_caveats(total: Total, deployments: Sequence[Deployment], place: int) -> tuple[str, ...]:
    """Return the caveats of one deployment's T(N): the doubts about it, then its own."""
    doubted = doubts(total, deployments, place)
    return (*map(str, doubted), *deployments[place].caveats)


def doubts_by_model(total: Total, deployments: Sequence[Deployment]) -> list[tuple[str, Doubt]]:
    """Return the doubts about models, of each the one with the largest share of T(1)."""
    every = dict[tuple[str, str, str], Doubt]()
    for place, query in enumerate(deployments):
        for doubt in doubts(total, deployments, place):
            key = query.decoder.name, query.platform, doubt.weights
            every[key] = max(doubt, every.get(key, doubt), key=lambda other: other.share)
    return [(model, doubt) for (model, _, _), doubt in every.items()]
