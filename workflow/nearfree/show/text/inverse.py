"""What `nearfree predict --positions K` prints: where K positions are near-free."""

from collections.abc import Iterator

import polars as pl

from nearfree.derive.predict.forecast.forecast import Forecast
from nearfree.derive.predict.forecast.inverse import NEAR_FREE, inverse
from nearfree.show.text.columns import columns


def inverse_report(
    found: Forecast, positions: int, epsilon: float, accepted: float | None
) -> Iterator[str]:
    """Yield what K positions cost in each deployment, those where they are near-free first."""
    rows = inverse(found, positions, epsilon)
    free = rows.filter(verdict=NEAR_FREE)
    yield (
        f"{positions} positions are near-free (T({positions}) <= {1 + epsilon:g} T(1), by the work "
        f"model) in {free.height} of {rows.height} settings"
    )
    ratio = f"T({positions})/T(1)"
    used = [] if accepted is None else ["accepted / N_max"]
    head: list[object] = ["model", "platform", "backends", "routing", "b", "L", ratio, "interval",
                          "N_max", *used, "verdict"]  # fmt: skip
    table: list[list[object]] = [head]
    later = pl.col("verdict").ne_missing(pl.lit(NEAR_FREE))
    for row in rows.sort(later, maintain_order=True).to_dicts():
        asked = found.deployments[row["deployment"]]
        backends = ", ".join(str(each) for each in (asked.attention, asked.moe) if each)
        setting = [asked.decoder.name, asked.platform, backends, asked.routing or "-",
                   asked.batch, asked.context]  # fmt: skip
        if row["refusal"]:
            table.append([*setting, "-", "", "-", *(["-"] if used else []), row["refusal"]])
            continue
        interval = f"{row['low']:.2f} to {row['high']:.2f}"
        share = [] if accepted is None else [f"{accepted / row['n_max']:.2f}"]
        table.append(
            [*setting, f"{row['ratio']:.3f}", interval, row["n_max"], *share, row["verdict"]]
        )
    yield from columns(table)
