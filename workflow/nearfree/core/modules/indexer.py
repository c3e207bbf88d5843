"""The indexer of sparse attention: scores of cached positions for each new position.

H index heads of d elements share one key per position. Each pair of a query and a key gets one
logit, the sum over heads, and the `selected` largest are chosen (DeepSeek-V3.2 report, sec. 2.1,
eq. 1). The indexer reads every position, so its work grows with L while attention's does not. If
`span` positions share one entry, as in DeepSeek V4, it reads (L + N) / span entries.
"""

import math

from nearfree.core.modules.attention import idle_by_reuse, is_causal, tiled_pairs, visible_pairs
from nearfree.core.modules.kind import Equation, Granularity, Laws, ModuleKind
from nearfree.core.setting import Setting
from nearfree.core.setting_check import required
from nearfree.core.work import ExecutedWork, cache_bytes, element_bytes
from nearfree.errors import EvidenceError

M_INDEX = "M_index"
LOGITS, SELECT = "logits", "select"
"""Its two calls, the values of the field `api`: computing the logits, which is the default, and
selecting the largest."""
_LOGIT_BYTES = 4
"""Bytes per logit: float32."""


def indexer_work(
    setting: Setting, n: int, basis: str, *, rows: int | None = None, group: int = 1
) -> ExecutedWork:
    """Return the work of the logits of N new positions over L cached and N new keys.

    It is 2 H d FLOPs per pair. Bytes are the keys, the queries and the written logits.

    Parameters
    ----------
    rows
        Positions per tile; None without padding.
    """
    del group  # heads are summed inside a position
    heads, width, context = setting.heads or 0, setting.head_dim or 0, setting.context or 0
    causal = is_causal(setting)
    pairs = math.ceil(visible_pairs(n, context, causal=causal) / setting.span)
    tiles, computed = tiled_pairs(
        n, context, tile_rows=rows or 1, padded=rows is not None, skips=causal
    )
    per_pair = 2 * setting.batch * heads * width
    computed = math.ceil(computed / setting.span)
    moved = (context + n) / setting.span * width * cache_bytes(setting)
    moved += n * heads * width * element_bytes(setting) + _LOGIT_BYTES * pairs
    return ExecutedWork(
        flop_logical=per_pair * pairs,
        flop_executed=per_pair * computed,
        bytes_compulsory=math.ceil(setting.batch * moved),
        blocks=tiles * setting.batch,
        block_rows=rows or 1,
        basis=basis,
    )


def idle_compute(setting: Setting, balance: float, *, extended: bool = True) -> float:
    """Return N_idle = rho s L / (2 H L - rho s), +inf if 2 H L <= rho s.

    This is the paper's law of attention for H heads that share a key, with one product instead of
    two, which halves both FLOPs and bytes (sec. 3.4, app. B.2). Written logits are not counted, as
    in the paper.
    """
    del extended  # the paper has no form of it
    return idle_by_reuse(setting, balance, setting.heads or 0)  # a span cancels


def principle_terms(
    setting: Setting, balance: float, granularity: Granularity | None, *, extended: bool = True
) -> dict[str, float]:
    """Return the term of the law: the number of positions per pass over the keys."""
    del setting, balance, extended
    if granularity is None:
        raise EvidenceError(
            "no tile of an indexer is known: the paper prints none",
            remedy="Name a backend and release whose rules give the tile",
        )
    return {M_INDEX: granularity.rows}


INDEXER = ModuleKind(
    name="indexer",
    title="indexer",
    knobs=(
        "context (the shorter, the fewer keys it scores)",
        "backend and its version (how many queries a tile takes)",
        "batch (each request has keys of its own)",
    ),
    own="context",
    has_cache=True,
    padded_work=indexer_work,
    laws=Laws(
        needs=required("indexer"),
        idle_fields=("kv_dtype", "context", "heads"),
        idle_compute=idle_compute,
        idle_term="rho s L / (2 H L - rho s)",
        idle_place="paper sec. 3.4, extended to heads that share a key",
        idle=Equation(
            "N_idle = rho s L / (2 H L - rho s), unbounded where 2 H L <= rho s",
            "sec. 3.4.1, extended",
        ),
        term_fields=("kv_dtype",),
        terms=principle_terms,
        principle_place="paper sec. 4.1, extended to index heads",
        principle=Equation("N_max = M_index", "sec. 4.1, extended"),
        letter=M_INDEX,
    ),
)
