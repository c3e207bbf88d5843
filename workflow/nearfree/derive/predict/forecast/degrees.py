"""The degrees of parallelism that a question asks for, and why they are none of a deployment."""

from msgspec import Struct

from nearfree.config.files import DeploymentSpec
from nearfree.core.parallel import Parallel
from nearfree.decoders.shards import without_experts
from nearfree.errors import ConfigError, Refusal


class Spread(Struct, frozen=True, kw_only=True):
    """The degrees of parallelism that are asked for, and why they are none of a deployment.

    `ep` is the one that is asked for, and `uneven` why it divides no ranks; `parallel` then has
    none, so that all else is checked, too.
    """

    parallel: Parallel
    refusals: tuple[Refusal, ...] = ()
    ep: int = 1
    uneven: Refusal | None = None

    def refused(self, *, of_experts: bool) -> tuple[Refusal, ...]:
        """Return why they are none of a model with experts, or of one without: that has no ep."""
        if self.uneven is None:
            return self.refusals
        return (self.uneven if of_experts else without_experts(self.ep), *self.refusals)


def spread_of(spec: DeploymentSpec) -> Spread:
    """Return how a deployment is spread over GPUs.

    GPUs share each matrix where no tp, dp or pp is given, as engines take them.
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
    found = list[Refusal]()
    if spec.gpus not in (None, parallel.gpus):
        tp, dp, _, pp, gpus = parallel.said.values()
        reason = f"{spec.gpus} is not the {gpus} of tp {tp} x dp {dp} x pp {pp}"
        found.append(Refusal("", "gpus", reason, f"Give {gpus}, or leave --gpus out"))
    return Spread(parallel=parallel, refusals=tuple(found), ep=spec.ep, uneven=uneven)
