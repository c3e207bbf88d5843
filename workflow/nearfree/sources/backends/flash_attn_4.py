"""FlashAttention 4: rows of a block, for each family of capabilities.

A block is `q_stage` tiles of `tile_m` rows. Where heads are packed, a position takes a row for
each query head that shares the key-value head.
"""

from collections.abc import Mapping

from nearfree.errors import EvidenceError
from nearfree.sources.attention import Asked, AttentionQuery, Point, Tile
from nearfree.sources.backends.flash_attn_4_links import KERNELS, mechanisms
from nearfree.sources.backends.flash_attn_4_rules import call_facts, readings
from nearfree.sources.backends.launch import answered, holding, point_of, tiles_of
from nearfree.sources.language.rule import Rule

__all__ = ["PACKAGE", "WANTED", "mechanisms", "readings", "tile"]

PACKAGE = "flash-attn-4"
WANTED = r"(flash_attn/cute/)?(interface|flash_fwd(_sm90|_sm100)?)\.py"


THEN = ()
"""No rule is asked with the answer of another."""


def asks(asked: AttentionQuery, point: Point) -> tuple[Asked, ...]:
    """Return the one rule that is asked, that of the capability's family, and its facts."""
    facts = call_facts(
        asked.head_dim,
        asked.group,
        positions=point.positions,
        heads=asked.heads,
        kv_heads=asked.kv_heads,
        batch=point.batch,
        context=point.context,
        causal=asked.causal,
        cu_seqlens_q="given" if asked.api == "varlen" else None,
    )
    family = None if asked.sm is None else asked.sm // 10 * 10
    return (Asked(f"tile_sm{family}", facts | {"sms": asked.sms}),)


def tile(rules: Mapping[str, Rule], asked: AttentionQuery, positions: int) -> Tile:
    """Return how the queries are tiled; of packed requests, the caller says the longest length.

    Parameters
    ----------
    rules
        The release's extracted rules by name.
    asked
        The call.
    positions
        Query positions of each request.

    Raises
    ------
    EvidenceError
        The answer depends on a fact that the question leaves out, or there is no such kernel.
    """
    if asked.sm is None:
        raise EvidenceError(
            f"{PACKAGE} has one kernel for each compute capability, and the question names none",
            remedy="Name the device with --device, or give --sm and --sms",
        )
    family = asked.sm // 10 * 10
    ((name, known),) = asks(asked, point_of(asked, positions))
    chosen = answered(rules, name, known)
    rows, stages, splits, packed, built = chosen.value
    _checked(rules, built, packed=bool(packed), staged=stages > 1)
    each_position = asked.group if packed else 1
    marks = "+split" * (splits > 1) + "+pack_gqa" * bool(packed)
    return Tile(
        path=f"sm{family}{marks}",
        tile=rows * stages,
        rows_per_position=each_position,
        tiles=tiles_of(rows * stages, positions * each_position),
        branches=(chosen.branch,),
    )


def _checked(rules: Mapping[str, Rule], built: str, *, packed: bool, staged: bool) -> None:
    """Check that the kernel is one whose tiling is known, and that its lines are there."""
    if built not in KERNELS:
        raise EvidenceError(
            f"how {built} tiles is not read", remedy="Ask for another head size or capability"
        )
    links = ["tiles"] + ["packed"] * packed + ["stages"] * staged
    for each in links:
        holding(rules, f"{each}_{KERNELS[built]}", PACKAGE)
