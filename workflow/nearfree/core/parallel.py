"""Degrees of parallelism of a model: tensor, data, expert and pipeline parallel."""

from msgspec import Struct

from nearfree.core.protocols import Positive
from nearfree.errors import ConfigError


class Degrees(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The degrees of parallelism that a deployment is asked about, not yet checked.

    `tp` GPUs shard each matrix and the attention heads; `dp` such groups each run attention for
    their own requests. The `tp * dp` ranks of a stage share the experts: experts are distributed
    over `ep` groups of ranks, and each expert is sharded over the `moe_tp` ranks of its group. `pp`
    stages share the layers. Each is a field of settings, too, which says its meaning.
    """

    tp: Positive = 1
    dp: Positive = 1
    ep: Positive = 1
    pp: Positive = 1

    @property
    def by_name(self) -> dict[str, int]:
        """The degrees by name."""
        return {name: getattr(self, name) for name in DEGREES}


DEGREES = Degrees.__struct_fields__
"""The names of the degrees; options of the command line, columns and figures follow."""
KINDS = {"tp": "tensor", "dp": "data", "ep": "expert", "pp": "pipeline"}
"""The kind of parallelism of each degree, as options of engines spell it."""


class Parallel(Degrees, frozen=True, omit_defaults=True):
    """The degrees of parallelism of a deployment, which go with each other.

    Raises
    ------
    ConfigError
        ep does not divide the ranks of a stage.
    """

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
        return self.by_name | {"gpus": self.gpus}

    @property
    def moe_tp(self) -> int:
        """Number of ranks that shard each expert."""
        return self.ranks // self.ep


ONE_GPU = Parallel()
"""One GPU."""
