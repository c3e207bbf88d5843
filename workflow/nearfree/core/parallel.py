"""Degrees of parallelism of a model: tensor, data, expert and pipeline parallel."""

from msgspec import Struct

from nearfree.core.protocols import Positive
from nearfree.errors import ConfigError


class Parallel(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The degrees of parallelism of a deployment.

    `tp` GPUs shard each matrix and the attention heads; `dp` such groups each run attention for
    their own requests. The `tp * dp` ranks of a stage share the experts: experts are distributed
    over `ep` groups of ranks, and each expert is sharded over the `moe_tp` ranks of its group. `pp`
    stages share the layers.
    """

    tp: Positive = 1
    dp: Positive = 1
    ep: Positive = 1
    pp: Positive = 1

    def __post_init__(self) -> None:
        if self.ranks % self.ep:
            raise ConfigError(
                f"ep {self.ep} does not divide the {self.ranks} ranks of tp {self.tp} x dp "
                f"{self.dp}",
                remedy="Give an ep that divides tp x dp; ep = tp x dp keeps every expert whole, "
                "and vLLM takes that or 1",
            )

    @property
    def ranks(self) -> int:
        """Number of GPUs of a pipeline stage."""
        return self.tp * self.dp

    @property
    def gpus(self) -> int:
        """Number of all GPUs."""
        return self.ranks * self.pp

    @property
    def degrees(self) -> dict[str, int]:
        """The degrees by name, with the number of GPUs."""
        return {"tp": self.tp, "dp": self.dp, "ep": self.ep, "pp": self.pp, "gpus": self.gpus}

    @property
    def moe_tp(self) -> int:
        """Number of ranks that shard each expert."""
        return self.ranks // self.ep


ONE_GPU = Parallel()
"""One GPU."""
