"""Degrees of parallelism of a query, and the reasons to refuse them."""

from msgspec import Struct

from nearfree.config.files import DeploymentSpec
from nearfree.core.parallel import Parallel
from nearfree.decoders.shards import without_experts
from nearfree.errors import ConfigError, Refusal


class Spread(Struct, frozen=True, kw_only=True):
    """The degrees of parallelism of a query, with the reasons to refuse them.

    `ep` is the degree of the query, and `uneven` the refusal if it does not divide the ranks;
    `parallel` then has ep 1, so that everything else is checked, too.
    """

    parallel: Parallel
    refusals: tuple[Refusal, ...] = ()
    ep: int = 1
    uneven: Refusal | None = None

    def refused(self, *, of_experts: bool) -> tuple[Refusal, ...]:
        """Return the refusals for a model with experts, or for one without, which has no ep."""
        if self.uneven is None:
            return self.refusals
        return (self.uneven if of_experts else without_experts(self.ep), *self.refusals)


def spread_of(spec: DeploymentSpec) -> Spread:
    """Return the degrees of parallelism of a query.

    A number of GPUs without tp, dp or pp is taken as tp, as engines do.
    """
    degrees = {"tp": spec.tp, "dp": spec.dp, "ep": spec.ep, "pp": spec.pp}
    if spec.gpus is not None and spec.tp == spec.dp == spec.pp == 1:
        degrees["tp"] = spec.gpus
    uneven = None
    try:
        parallel = Parallel(**degrees)
    except ConfigError as error:
        uneven = Refusal("", "", error.what, error.remedy)
        parallel = Parallel(**degrees | {"ep": 1})
    refusals = list[Refusal]()
    if spec.gpus not in (None, parallel.gpus):
        tp, dp, _, pp, gpus = parallel.said.values()
        reason = f"{spec.gpus} is not the {gpus} of tp {tp} x dp {dp} x pp {pp}"
        refusals.append(Refusal("", "gpus", reason, f"Give {gpus}, or leave --gpus out"))
    return Spread(parallel=parallel, refusals=tuple(refusals), ep=spec.ep, uneven=uneven)
