"""A layer's whole attention: its projections, its indexer and attention itself.

An engine runs it between two residual additions, and public tables measure it for sparse and latent
attention over a cache. Its work is a sum: products with the projections' weights; the indexer's
logits over every stored entry, one per `span` positions; and attention to the selected entries, or
to all.
"""

from nearfree.core.modules.attention import visible_pairs
from nearfree.core.modules.kind import ModuleKind
from nearfree.core.setting import Setting
from nearfree.core.work import ExecutedWork, cache_bytes, element_bytes, unpadded_work

DECODE = "decode"
"""The call in which each new position is its own row, as engines decode drafts: b N rows cost as
much as one position of each of b N requests. Without `api` the new positions are prefilled."""
VERIFY = "verify"
"""As DECODE, but the rows of one request share the reads of the indexer's keys."""


def entry_widths(setting: Setting) -> tuple[int, int]:
    """Return the elements per stored entry, and the multiply-adds of all query heads with it.

    With a latent these are c + r and H (2 c + r); else 2 kv_heads d and 2 H d.
    """
    heads = setting.heads or 0
    if setting.latent is not None:
        stored = setting.latent + (setting.rope_dim or 0)
        return stored, heads * (stored + setting.latent)
    width = setting.head_dim or 0
    return 2 * (setting.kv_heads or 0) * width, 2 * heads * width


def attended_entries(setting: Setting, n: int) -> float:
    """Return the number of pairs of a new position and an entry it attends to, per request."""
    context, span = setting.context or 0, setting.span
    if setting.selected is None:
        return visible_pairs(n, context, causal=True) / span
    visible = ((context + i + 1) / span for i in range(n))
    return sum(min(entries, setting.selected) for entries in visible)


def layer_work(setting: Setting, n: int, basis: str) -> ExecutedWork:
    """Return the work of N new positions over L cached ones, without padding.

    Bytes are the weights once, and per request the index keys of all entries and the attended
    entries. The selections of several positions count as disjoint, up to the size of the cache.
    """
    tokens, context = setting.batch * n, setting.context or 0
    entries = (context + n) / setting.span
    stored, products = entry_widths(setting)
    attended = attended_entries(setting, n)
    index = (setting.index_heads or 0) * (setting.index_dim or 0)
    indexed = visible_pairs(n, context, causal=True) / setting.span if index else 0.0
    flop = 2.0 * tokens * (setting.projected or 0)
    flop += 2.0 * setting.batch * (attended * products + indexed * index)
    elements_read = stored * (entries if setting.selected is None else min(entries, attended))
    elements_read += entries * (setting.index_dim or 0)
    bytes_moved = (setting.projected or 0) * element_bytes(setting)
    bytes_moved += setting.batch * elements_read * cache_bytes(setting)
    bytes_moved += 2.0 * tokens * (setting.d_model or 0) * element_bytes(setting)
    return unpadded_work(flop, bytes_moved, basis)


ATTENTION_LAYER = ModuleKind(
    name="attention_layer",
    title="attention layer",
    knobs=(
        "engine and its version (the kernels of its attention layers)",
        "tensor parallelism (the fewer heads a rank has, the smaller its projections)",
        "batch (b N rows are decoded)",
    ),
    own="context",
    has_cache=True,
    work=layer_work,
)
"""The paper has no law for it: its laws are for one call, and a layer is the sum of several."""
