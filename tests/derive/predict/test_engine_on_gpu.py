"""The forecast of llama.cpp's forward on a GPU: by its rules alone."""

from nearfree.derive.granularity.engine_cuda import CudaEngineRules
from nearfree.derive.predict.engine_on_gpu import NO_CURVE, gpu_forecast

from derive.engines import forward, matrix
from derive.questions import RESOLVER


def test_the_rules_answer_and_no_time_is_predicted() -> None:
    """N_max is the N before the first type changes; steps go up to 33 rows of all requests."""
    matrices = tuple(matrix(kind, columns=4096) for kind in ("q6_k", "q4_k"))
    for batch, n_max, last in ((1, 5.0, 6), (2, 2.0, 3)):
        rules = CudaEngineRules(forward(matrices=matrices, batch=batch), 120, RESOLVER)
        forecast = gpu_forecast(rules)
        assert forecast.resolved["n_max"] == n_max
        assert forecast.resolved["limiting_module"] == "mul_mat q4_k"
        assert [change.n for change in forecast.changes if change.type == "q4_k"] == [last]
        assert all(change.rows <= 33 for change in forecast.changes)
        assert (forecast.timed, forecast.refusal) == (None, NO_CURVE)
        assert forecast.latency_us() == {}


def test_the_margin_is_the_next_types_change() -> None:
    """Q6_K goes to tiles above 7 rows on 12.0, Q4_K above 5."""
    matrices = tuple(matrix(kind, columns=4096) for kind in ("q6_k", "q4_k"))
    rules = CudaEngineRules(forward(matrices=matrices), 120, RESOLVER)
    assert gpu_forecast(rules).resolved["margin"] == 7 / 5
