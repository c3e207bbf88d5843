"""Near-free draft lengths of a forecast, by batch size."""

import pytest
from derive.predict.forecast.pool import SPARSE, deployment, forecast_of
from msgspec.structs import replace
from nearfree.derive.predict.forecast.forecast import Forecast
from nearfree.derive.schedule.expected import Choice
from nearfree.errors import EvidenceError
from nearfree.show.text.schedule import (
    boundary_by_batch,
    near_free_by_batch,
    ratio_by_batch,
    remarks,
)

MOST = 16
GRID = range(1, MOST + 2)


def found(predictor: str) -> Forecast:
    """Return a predictor's answers at several batch sizes."""
    queries = (deployment(batch=batch) for batch in (1, 8, 64))
    return forecast_of(*queries, grid=GRID, predictors=[predictor], full=False)


@pytest.mark.parametrize("cautious", [False, True])
def test_near_free_is_what_passes_itself(cautious: bool) -> None:  # noqa: FBT001
    """K drafts are near-free if T(K + 1) is within the tolerance, whatever smaller N do."""
    forecast = found("work_model")
    times, base = forecast.total.model_us, forecast.total.model_us[:, :1]
    ratio = (forecast.total.moved_us(1.0) if cautious else times) / base
    every = near_free_by_batch(forecast, 0.2, most=MOST, cautious=cautious)
    limits = boundary_by_batch(forecast, cautious=cautious)
    for place, (batch, ks) in enumerate(every.items()):
        passing = {n - 1 for n, value in zip(GRID, ratio[place], strict=True) if value <= 1.2}
        assert ks == {0} | passing
        assert max(ks) == limits[batch] - 1


def test_below_the_boundary_of_a_law_all_is_near_free() -> None:
    """For a law, all N up to its boundary are near-free."""
    forecast = found("principle")
    limits = boundary_by_batch(forecast, cautious=False)
    for batch, ks in near_free_by_batch(forecast, 0.2, most=MOST, cautious=False).items():
        assert ks == set(range(max(int(min(limits[batch], MOST + 1)), 1)))


@pytest.mark.parametrize(
    ("speeds", "where"),
    [
        ((1.2, 0.9, 0.8), "2 of 3 batch sizes, from b = 2 on"),
        ((0.9, 1.2, 0.8), "2 of 3 batch sizes, the smallest of them b = 1"),
        ((1.2, 0.9, 1.1), "1 of 3 batch sizes, the smallest of them b = 2"),
    ],
)
def test_where_no_drafter_is_faster(speeds: tuple[float, ...], where: str) -> None:
    """The text "from b on" is printed only if all larger batch sizes are included."""
    choices = {batch: Choice(1, speed) for batch, speed in enumerate(speeds, 1)}
    (remark,) = remarks(found("work_model"), choices)
    assert remark == f"decoding without a drafter is faster at {where}"


def test_no_schedule_names_what_has_one() -> None:
    """A refusal names engines whose experts are known and have a schedule."""
    options = ("--moe vllm==0.24.0", "--moe sglang==0.5.23")
    query = replace(deployment(SPARSE[0], "skewed", platform="cpu"), instead=options)
    for given, ending in (
        (options, "; sglang's own option is `nearfree schedule sglang`"),
        ((), ""),
    ):
        asked_about = forecast_of(replace(query, instead=given), grid=GRID, full=False)
        with pytest.raises(EvidenceError) as error:
            ratio_by_batch(asked_about)
        such = f", such as {' or '.join(given)}" if given else ""
        assert error.value.remedy.endswith(f"kernels and constants are known{such}{ending}")
