"""How a model is spread over GPUs: tensor, data, expert and pipeline parallel."""

from msgspec import Struct

from nearfree.core.protocols import Positive
from nearfree.errors import ConfigError


class Parallel(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The degrees of parallelism of a deployment.

    `tp` GPUs share each matrix and the heads of attention; `dp` such groups attend to requests of
    their own; the `tp dp` ranks of a stage share the experts, whole ones over `ep` groups of ranks,
    each expert cut over the `moe_tp` ranks of a group; `pp` stages share the layers.
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
        """The GPUs of a pipeline stage."""
        return self.tp * self.dp

    @property
    def gpus(self) -> int:
        """All GPUs."""
        return self.ranks * self.pp

    @property
    def said(self) -> dict[str, int]:
        """The degrees by name, with the GPUs that they make."""
        return {"tp": self.tp, "dp": self.dp, "ep": self.ep, "pp": self.pp, "gpus": self.gpus}

    @property
    def moe_tp(self) -> int:
        """The ranks that share each expert."""
        return self.ranks // self.ep


ALONE = Parallel()
"""One GPU."""
