"""All of a layer's attention: its projections, its indexer and attention itself.

It is what an engine runs between two residual sums, and what public tables measure of sparse and
latent attention over a cache. Its work is a sum: products with the projections' weights; numbers
of the indexer over every stored entry, one for `span` positions; and attention to as many entries
as are selected, or to all.
"""

import math

from nearfree.core.modules.attention import visible_pairs
from nearfree.core.modules.kind import ModuleKind
from nearfree.core.setting import Setting
from nearfree.core.work import ExecutedWork, cache_bytes, element_bytes

DECODE = "decode"
"""Its call in which each new position is a row of its own, as engines decode drafts: b N rows cost
what one position of each of b N requests does. Where the field `api` says none, they are prefilled.
"""
VERIFY = "verify"
"""As decoding, but the rows of one request read the indexer's keys together."""


def entry_widths(setting: Setting) -> tuple[int, int]:
    """Return the elements of a stored entry, and the multiply-adds of a query with it, all heads.

    With a latent that is c + r, and H (2 c + r); else 2 kv_heads d, and 2 H d.
    """
    heads = setting.heads or 0
    if setting.latent is not None:
        stored = setting.latent + (setting.rope_dim or 0)
        return stored, heads * (stored + setting.latent)
    width = setting.head_dim or 0
    return 2 * (setting.kv_heads or 0) * width, 2 * heads * width


def attended_entries(setting: Setting, n: int) -> float:
    """Return the pairs of a new position and an entry that it attends to, of one request."""
    context, span = setting.context or 0, setting.span
    if setting.selected is None:
        return visible_pairs(n, context, causal=True) / span
    every = ((context + i + 1) / span for i in range(n))
    return sum(min(each, setting.selected) for each in every)


def layer_work(
    setting: Setting, n: int, basis: str, *, rows: int | None = None, group: int = 1
) -> ExecutedWork:
    """Return the work of N new positions over L cached ones, without what only fills tiles.

    Bytes are weights once, and of each request the index keys of all entries and the entries that
    are attended to, those of several positions taken apart as far as the cache goes.
    """
    del rows, group  # its kernels have tiles of their own each
    tokens, context = setting.batch * n, setting.context or 0
    entries = (context + n) / setting.span
    stored, products = entry_widths(setting)
    attended = attended_entries(setting, n)
    index = (setting.index_heads or 0) * (setting.index_dim or 0)
    indexed = visible_pairs(n, context, causal=True) / setting.span if index else 0.0
    flop = 2.0 * tokens * (setting.projected or 0)
    flop += 2.0 * setting.batch * (attended * products + indexed * index)
    read = stored * (entries if setting.selected is None else min(entries, attended))
    read += entries * (setting.index_dim or 0)
    moved = (setting.projected or 0) * element_bytes(setting)
    moved += setting.batch * read * cache_bytes(setting)
    moved += 2.0 * tokens * (setting.d_model or 0) * element_bytes(setting)
    return ExecutedWork(
        flop_logical=math.ceil(flop),
        flop_executed=math.ceil(flop),
        bytes_compulsory=math.ceil(moved),
        basis=basis,
    )


ATTENTION_LAYER = ModuleKind(
    name="attention_layer",
    title="attention layer",
    own="context",
    has_cache=True,
    work=layer_work,
)
"""It has no law of the paper, which speaks of one call: a layer is the sum of several."""
