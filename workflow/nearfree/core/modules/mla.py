"""Latent attention (MLA): per position one latent of c elements, and r rotated elements.

Two forms compute the same result. *Absorbed*: a query is projected into the latent's space, and all
H heads of a rank share one key of c + r elements, whose first c are the value. So a cached position
is read once for any H. *Naive*: the latent is first expanded to keys and values of each head, and
the heads share nothing (DeepSeek-V2, arXiv 2405.04434, sec. 2.1.2 and eq. 9 to 19). With sparse
selection each query attends to `selected` positions that an indexer chose.
"""

from msgspec import Struct

from nearfree.core.modules.attention import (
    SHORTER,
    idle_by_reuse,
    is_causal,
    tiled_pairs,
    visible_pairs,
)
from nearfree.core.modules.kind import Equation, Granularity, Laws, ModuleKind
from nearfree.core.modules.study import Axis, StudyBase
from nearfree.core.protocols import Positive
from nearfree.core.setting import Setting
from nearfree.core.setting_check import required
from nearfree.core.work import ExecutedWork, cache_bytes, moved_bytes
from nearfree.errors import EvidenceError

ABSORBED, NAIVE = "absorbed", "naive"
"""The forms, the values of the field `api`; absorbed is the default."""
M_MLA = "M_mla"


class MlaShape(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Query heads per rank, and the widths of latent and heads in elements."""

    heads: Positive
    latent: Positive
    rope_dim: Positive
    nope_dim: Positive
    value_dim: Positive
    selected: Positive | None = None


class MlaStudy(StudyBase, frozen=True, kw_only=True, tag="mla"):
    """Latent attention over context lengths L."""

    axes = ("batch", "context")
    shape: MlaShape
    context: Axis
    page_size: Positive | None = None


class MlaQuestion(Struct, frozen=True, kw_only=True):
    """One call of latent attention on one platform; an engine chooses the `kernel` if None."""

    backend: str
    backend_version: str | None
    kernel: str | None
    context: int
    heads: int
    selected: int | None
    api: str | None
    dtype: str
    kv_dtype: str | None
    sm: int | None


def is_absorbed(setting: Setting) -> bool:
    """Return whether a setting of latent attention has the absorbed form."""
    return setting.api != NAIVE


def head_widths(setting: Setting) -> tuple[int, int]:
    """Return the widths of a head's key (and query) and of its value, in the setting's form.

    Absorbed: c + r and c. Naive: nope + r and value.
    """
    rope = setting.rope_dim or 0
    if is_absorbed(setting):
        return (setting.latent or 0) + rope, setting.latent or 0
    return (setting.nope_dim or 0) + rope, setting.value_dim or 0


def stored_elements(setting: Setting) -> int:
    """Return the number of elements that attention reads per cached position.

    Absorbed: the one key, which contains the value. Naive: a key and a value per head.
    """
    key, value = head_widths(setting)
    return key if is_absorbed(setting) else (setting.heads or 0) * (key + value)


def attended_pairs(setting: Setting, n: int) -> int:
    """Return the number of pairs of a new position and a key that it attends to, per request."""
    context, causal = setting.context or 0, is_causal(setting)
    if setting.selected is None:
        return visible_pairs(n, context, causal=causal)
    if not causal:
        return n * min(setting.selected, context + n)
    unfilled = min(
        max(setting.selected - context, 0), n
    )  # positions that see fewer than `selected` keys
    return unfilled * context + unfilled * (unfilled + 1) // 2 + (n - unfilled) * setting.selected


def read_positions(setting: Setting, n: int) -> int:
    """Return how many positions of a request are read: L + N, or those that were selected.

    The selections of several positions count as disjoint, up to the size of the cache.
    """
    positions = (setting.context or 0) + n
    return positions if setting.selected is None else min(positions, attended_pairs(setting, n))


def mla_work(
    setting: Setting, n: int, basis: str, *, rows: int | None = None, group: int | None = None
) -> ExecutedWork:
    """Return the work of N new queries over L cached and N new positions of each request.

    A pair of a query and a key costs 2 (key + value) FLOPs per head: 2 (2 c + r) absorbed.

    Parameters
    ----------
    rows
        Query rows per tile; None without padding.
    group
        Number of heads that share a row axis. The default, None, is all heads of a rank if
        absorbed, and one if naive. Each query has its own selected positions, so with selection a
        tile never holds two positions.
    """
    key, value = head_widths(setting)
    context, heads = setting.context or 0, setting.heads or 0
    shared = group or (heads if is_absorbed(setting) else 1)
    tile_rows, padded = rows or 1, rows is not None
    pairs = attended_pairs(setting, n)
    if setting.selected is None:
        tiles, computed = tiled_pairs(
            n, context, tile_rows=tile_rows, group=shared, padded=padded,
            skips=is_causal(setting),
        )  # fmt: skip
    else:
        tiles_per_position = -(-shared // tile_rows)
        tiles, computed = n * tiles_per_position, pairs * tiles_per_position * tile_rows
    axes, per_pair = heads // shared, 2 * setting.batch * (key + value)
    return ExecutedWork(
        flop_logical=per_pair * heads * pairs,
        flop_executed=per_pair * axes * computed,
        bytes_compulsory=moved_bytes(
            setting,
            cached=setting.batch * stored_elements(setting) * read_positions(setting, n),
            rest=setting.batch * n * heads * (key + value),
        ),
        blocks=tiles * axes * setting.batch,
        block_rows=tile_rows,
        basis=basis,
    )


def _work(
    setting: Setting, n: int, basis: str, *, rows: int | None = None, group: int = 1
) -> ExecutedWork:
    return mla_work(setting, n, basis, rows=rows, group=group if group > 1 else None)


def idle_compute(setting: Setting, balance: float, *, extended: bool = True) -> float:
    """Return N_idle = rho s L / (2 w L - rho s), +inf if 2 w L <= rho s.

    w = H (key + value) / stored is the number of multiplications per element read:
    H (2 c + r) / (c + r) absorbed, 1 naive. As in the paper's law of attention (sec. 3.4,
    app. B.2), causal masking and queries are not counted. With selection each position reads its
    own keys, so the intensity is 2 w / s at every N: N_idle is +inf if that is below rho, else 1.
    """
    del extended  # the paper has no form of it
    key, value = head_widths(setting)
    reuse = (setting.heads or 0) * (key + value) / stored_elements(setting)
    if setting.selected is not None and setting.selected < (setting.context or 0):
        return float("inf") if 2 * reuse < balance * cache_bytes(setting) else 1.0
    return idle_by_reuse(setting, balance, reuse)


def principle_terms(
    setting: Setting, balance: float, granularity: Granularity | None, *, extended: bool = True
) -> dict[str, float]:
    """Return the term of the law: the positions that fill a tile of R rows, R / H absorbed.

    With selection it is 1, since a tile holds one position.
    """
    del balance, extended
    if granularity is None:
        raise EvidenceError(
            "no tile of latent attention is known: the paper prints none",
            remedy="Name a backend and release whose rules give the tile",
        )
    return {M_MLA: granularity.rows if setting.selected is None else min(granularity.rows, 1.0)}


MLA = ModuleKind(
    name="mla",
    title="latent attention",
    several="latent attention",
    knobs=(
        "backend and its version (another tile, or another path for several positions)",
        "tensor parallelism (the fewer heads a rank has, the more positions fill a tile)",
        SHORTER,
    ),
    own="context",
    has_cache=True,
    study=MlaStudy,
    padded_work=_work,
    laws=Laws(
        needs=required("mla"),
        idle_fields=(
            *("kv_dtype", "context", "heads", "latent", "rope_dim", "nope_dim", "value_dim"),
            *("selected", "api"),
        ),
        idle_compute=idle_compute,
        idle_term="rho s L / (2 w L - rho s)",
        idle_place="paper sec. 3.4, extended to w FLOPs an element read",
        idle=Equation(
            "N_idle = rho s L / (2 w L - rho s), w = H (2 c + r) / (c + r) absorbed, 1 naive; "
            "unbounded where 2 w L <= rho s",
            "sec. 3.4.1, extended",
        ),
        term_fields=("kv_dtype", "api", "selected"),
        terms=principle_terms,
        principle_place="paper sec. 4.1, extended to heads packed in a tile",
        principle=Equation("N_max = M_mla = R / H", "sec. 4.1, extended"),
        letter=M_MLA,
    ),
    question=MlaQuestion,
)
