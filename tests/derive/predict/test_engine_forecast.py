"""Forecasts of a GGUF file's forward: which N the work model answers."""

from nearfree.derive.predict.engine_answers import MOST_ROWS, SHOWN_N, engine_forecast
from nearfree.derive.work_model.engine import needed_kernels

from derive.engines import curve, rules
from derive.predict.test_engine_answers import CONSTANTS


def test_curves_of_other_forwards_take_nothing_away() -> None:
    """Kernels that only curves of other threads ran are not required."""
    engine_rules = rules("q8_0")
    assert needed_kernels(engine_rules, range(1, MOST_ROWS + 1)) > needed_kernels(
        engine_rules, SHOWN_N
    )
    mine = curve(rules("q8_0", context=256), CONSTANTS, name="mine", grid=SHOWN_N)
    other = curve(rules("q8_0", threads=2), CONSTANTS, name="other")
    alone, beside = (
        engine_forecast(engine_rules, "cpu", curves_) for curves_ in ([mine], [mine, other])
    )
    assert (alone.refusal, beside.refusal) == (None, None)
    assert beside.latency_us() == alone.latency_us()
