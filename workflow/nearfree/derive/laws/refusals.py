"""Why a law has no value for a question: the field or fact that is missing, by name."""

import polars as pl

from nearfree.core.modules.kind import Laws
from nearfree.core.modules.registry import KINDS
from nearfree.core.modules.routing import SPREADS

_module = pl.col("module")
LAWFUL: dict[str, Laws] = {name: kind.laws for name, kind in KINDS.items() if kind.laws}
"""The laws of the kinds of modules that have some."""
GRANULAR = [name for name, laws in LAWFUL.items() if laws.letter]
ROUTED = [name for name, kind in KINDS.items() if kind.routed]
CACHED = [name for name, kind in KINDS.items() if kind.has_cache]


def law_refusal(*, by_balance: bool) -> pl.Expr:
    """Return why a law cannot be asked; null where it can.

    `by_balance` says that it asks for rho whatever the module is; else only the laws without a
    granularity do.
    """
    bare = [name for name in LAWFUL if by_balance or name not in GRANULAR]
    return pl.coalesce(shape_refusal(), pl.when(_module.is_in(bare)).then(facts_refusal()))


def shape_refusal(*, cached: bool = True) -> pl.Expr:
    """Return what a question itself lacks for any law; null where it lacks nothing.

    The paper's laws speak of attention over a cache alone; `cached` says whether that is asked.
    """
    unspread = _module.is_in(ROUTED) & ~pl.col("routing").is_in(SPREADS)
    uncached = _module.is_in(CACHED) & (pl.col("context") == 0) & cached
    missing = [
        pl.when((_module == module) & pl.col(field).is_null()).then(
            written(f"the {{}} setting lacks {field}", "module")
        )
        for module, laws in LAWFUL.items()
        for field in laws.needs
    ]
    return pl.coalesce(
        pl.when(~_module.is_in(list(LAWFUL))).then(
            written("no law for the module {} yet", "module")
        ),
        *missing,
        pl.when(unspread).then(written("no law for {} routing", "routing")),
        pl.when(uncached).then(pl.lit("no law for attention without a cache (context 0)")),
    )


def facts_refusal() -> pl.Expr:
    """Return which fact of the platform is missing: phi or beta; null where none is."""
    return pl.coalesce(
        pl.when(pl.col("known").is_null()).then(written("no facts of {}", "platform")),
        pl.when(pl.col("peak_tflops").is_null()).then(
            written("no phi of {} for {}", "platform", "dtype")
        ),
        pl.when(pl.col("bandwidth_gb_s").is_null()).then(written("no beta of {}", "platform")),
    )


def written(form: str, *columns: str) -> pl.Expr:
    """Return a sentence with columns in its places, a question mark for null."""
    return pl.format(form, *(pl.col(name).fill_null("?") for name in columns))
