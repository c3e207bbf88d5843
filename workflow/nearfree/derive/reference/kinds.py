"""The kinds of public curves that groups learn from, and what tells two curves of a kind apart."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from msgspec import Struct

from nearfree.core.modules.attention import ATTENTION
from nearfree.core.modules.attention_layer import ATTENTION_LAYER
from nearfree.core.modules.dense_ffn import GEMM
from nearfree.core.modules.indexer import INDEXER
from nearfree.core.modules.mla import MLA
from nearfree.core.modules.moe_ffn import MOE_FFN

Along = Literal["positions", "rows", "rows_per_expert"]
"""The coordinate of a curve's points: N, b N, or b N k / E."""
_OCTAVES, _PRODUCT_OCTAVES = 5.0, 3.0
"""Scales: doublings of a size over which two curves become unrelated."""
MOST_ATTENTION = 70
"""Most curves per attention kernel, evenly spread over its settings."""
MOST_DECODED = 55
"""Most curves per decoded layer, spread likewise."""
SPAN = "span"
"""The field whose different values make curves of attention layers unrelated; 1 where a curve has
none. Without it, layers with an entry per 4 positions, of which some are selected, would be near
those with an entry per 128, which are all attended to."""


class CurveKind(Struct, frozen=True, kw_only=True):
    """A kind of curves: families of the work model for one module, with the same coordinates.

    Parameters
    ----------
    module
        The kind of module that the curves are of.
    model
        The fields that make a model, which R2m leaves out everywhere: for products a depth K, for
        attention a head layout, for attention layers the width and a rank's heads.
    scales
        By coordinate, the doublings over which two curves become unrelated.
    along
        The coordinate of N; with rows per expert the routing is a coordinate, too.
    most
        Most curves per kernel, evenly spread over its settings; None for all.
    decodes_apart
        Whether the module runs different kernels for one position and for several.
    by_span
        Whether another span makes curves unrelated.
    """

    module: str
    model: tuple[str, ...]
    scales: Mapping[str, float]
    along: Along = "rows"
    most: int | None = None
    decodes_apart: bool = False
    by_span: bool = False


_LAYER_MODEL = ("d_model", "heads", "latent", SPAN)
_BY_FAMILY: Mapping[str, CurveKind] = MappingProxyType({
    GEMM.name: CurveKind(
        module=GEMM.name,
        model=("d_model",),
        scales={"d_model": _PRODUCT_OCTAVES, "d_ff": _PRODUCT_OCTAVES},
    ),
    "moe": CurveKind(
        module=MOE_FFN.name,
        model=("d_model", "experts", "top_k"),
        scales={"d_model": _OCTAVES, "d_ff": _OCTAVES, "experts": _OCTAVES, "top_k": 3.35},
        along="rows_per_expert",
    ),
    ATTENTION.name: CurveKind(
        module=ATTENTION.name,
        model=("heads", "kv_heads", "head_dim"),
        scales=dict.fromkeys(("heads", "kv_heads", "head_dim", "batch", "context"), _OCTAVES),
        along="positions",
        most=MOST_ATTENTION,
        decodes_apart=True,
    ),
    MLA.name: CurveKind(
        module=MLA.name,
        model=("heads", "latent", "rope_dim", "nope_dim", "value_dim"),
        scales=dict.fromkeys(("heads", "batch", "context"), _OCTAVES),
        along="positions",
        most=MOST_ATTENTION,
    ),
    INDEXER.name: CurveKind(
        module=INDEXER.name,
        model=("heads", "head_dim", SPAN),
        scales=dict.fromkeys(("heads", "batch", "context"), _OCTAVES),
        most=MOST_ATTENTION,
    ),
    "layer": CurveKind(
        module=ATTENTION_LAYER.name,
        model=_LAYER_MODEL,
        scales=dict.fromkeys(("heads", "projected", "batch", "context"), _OCTAVES),
        most=MOST_ATTENTION,
        by_span=True,
    ),
    "decode": CurveKind(
        module=ATTENTION_LAYER.name,
        model=_LAYER_MODEL,
        scales=dict.fromkeys(("heads", "projected", "context"), _OCTAVES),
        most=MOST_DECODED,
        by_span=True,
    ),
})  # fmt: skip
"""The kinds by the first word of their families' names."""
MODEL_FIELDS = {kind.module: kind.model for kind in _BY_FAMILY.values()}
"""By module, the fields that make a model; the modules whose kernels are kept."""
DECODES_APART = [kind.module for kind in _BY_FAMILY.values() if kind.decodes_apart]
"""The modules that run different kernels for one position and for several."""


def kind_of(family: str) -> CurveKind:
    """Return the kind of a family's curves."""
    return _BY_FAMILY[family.partition("_")[0]]
