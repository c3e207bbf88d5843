"""Panels of measured models: one a model, routing and context, over batches or experts a token."""

import polars as pl
from msgspec import structs

from nearfree.core.label import label
from nearfree.core.modules.kind import ModuleKind
from nearfree.core.modules.model import MODEL
from nearfree.show.figures.panels import with_variants

CURVE = ["platform", "stream", "setting_key"]
"""What says which measured setting a row is about."""
DENSE = structs.replace(MODEL, own="batch")
MOE = structs.replace(MODEL, own="top_k")
"""The variable that figures of dense models and of MoE models are over."""
_IN_PANEL = ("model", "routing", "context")


def with_model_panels(rows: pl.DataFrame, module: ModuleKind) -> pl.DataFrame:
    """Return rows of models with `panel`: model, routing, L, and what else tells settings apart.

    Parameters
    ----------
    rows
        Rows of one platform and origin with the columns of a setting.
    module
        The variable inside a panel.
    """
    each = [
        with_variants(part, module, named=_IN_PANEL)
        for part in rows.sort(*_IN_PANEL).partition_by("model", maintain_order=True)
    ]
    drawn = pl.concat(each)
    told = [
        f"{row['model']}: {label(row, (*_IN_PANEL[1:], 'variant'))}"
        for row in drawn.select(*_IN_PANEL, "variant").to_dicts()
    ]
    return drawn.with_columns(pl.Series("panel", told, dtype=pl.String)).sort(
        *_IN_PANEL, "variant", module.own, "setting_key"
    )
