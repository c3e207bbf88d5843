"""Padded steps: products run a graph's rows, attention the real positions."""

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from nearfree.backends.names import BackendRelease
from nearfree.config.files import DeploymentSpec
from nearfree.core.parallel import Parallel
from nearfree.decoders.ranks.modules import ATTENTION, HOST
from nearfree.derive.engine_step.launches import LAUNCH_US, launch_count
from nearfree.derive.granularity.graphs import Graphs, Step
from nearfree.derive.predict.forecast.deployment import Deployment, Questions
from nearfree.derive.predict.forecast.expand_deployments import deployments
from nearfree.derive.predict.forecast.padding import Rows, graph_rows, padded, timed_grid
from nearfree.derive.predict.forecast.total import Total, total
from nearfree.errors import ConfigError

from derive.predict.forecast.pool import ANSWERER, CONFIG, DENSE, GRID, deployment, forecast_of

VLLM = Graphs(engine=BackendRelease("vllm", "0.20.2"), sm=90, memory_gib=80)
SGLANG = Graphs(engine=BackendRelease("sglang", "0.5.14"), sm=90, memory_gib=80)
SMALL = GRID[:12]


def timed(query: Deployment, grid: list[int] = SMALL) -> Total:
    """Return T(N) of a deployment."""
    return total(Questions([query], grid), ANSWERER)


def step(tokens: int, rows: int) -> Step:
    """Return a step that runs the given number of rows."""
    return Step(tokens, rows, rows, "file.py L1-2")


def test_padded_rows_are_those_of_one_request_and_states_of_each() -> None:
    """At b = 4 six rows are N = 6 of one request; a state runs N = 1.5 of four, interpolated."""
    grid, steps = [1, 2], [[step(4, 6), step(8, 8)]]
    assert timed_grid([1], [[step(4, 18)]], [0]) == [1, 4, 5]
    assert timed_grid([1], [[step(4, 18)]], []) == [1]
    assert graph_rows(steps) == [1, 6, 8]
    assert graph_rows([[step(8, 8)], [Step(600, 600, None, "file.py L1-2")]]) == []
    timed_questions = timed(deployment(graphs=VLLM)).timed
    row_us = np.array([[[2.0, 12.0, 16.0], [0.0, 0.0, 0.0], [0.0] * 3, [1.0, 6.0, 8.0], [9.0] * 3]])
    rows = Rows([1, 6, 8], row_us, np.array([[5, -1, -1, -1, -1]]), timed_questions)
    latency = np.array([[[10.0, 16.0], [1.0, 3.0], [2.0, 4.0], [5.0, 8.0], [7.0, 7.0]]])
    padded_steps, padding = padded(
        grid, grid, latency, steps, rows=rows, launches=[0],
        has_state=np.array([[False, False, True, False, False]]),
    )  # fmt: skip
    assert padded_steps[0].tolist() == [
        [12.0, 16.0],
        [1.0, 3.0],
        [3.0, 4.0],
        [6.0, 8.0],
        [7.0, 7.0],
    ]
    assert padding.unpadded_us.tolist() == latency.tolist()
    assert padding.at[0].tolist() == [[0, 1], [0, 1], [1, 1], [0, 1], [0, 1]]
    assert padding.row_step(0, 0, 0, 0) == (5, 1, 1)
    assert padding.row_step(0, 0, 0, 1) is None  # the second step is not padded
    assert padding.row_step(0, 1, 0, 0) is None  # attention runs what it is asked
    assert padding.stopped_by(0, 0) == "graph of 6 tokens: 4 rows run as 6"
    assert padding.stopped_by(0, 1) is None


def test_above_the_largest_graph_the_host_takes_what_launches_take_longer() -> None:
    """Above the largest graph T(N) is the longer of kernels and launches."""
    eager, us = Step(600, 600, None, "file.py L1-2"), 10 * LAUNCH_US
    latency = np.array([[[20.0, 20.0, us], [5.0, 5.0, 5.0], [7.0, 7.0, 7.0]]])
    steps, real = [[step(8, 8), eager, eager]], np.zeros((1, 3), dtype=bool)
    padded_steps, padding = padded(
        [1, 2, 3], [1, 2, 3], latency, steps, has_state=real, rows=None, launches=[10]
    )
    assert padded_steps.sum(axis=1).tolist() == [[32.0, us + 7.0, us + 12.0]]
    assert padded_steps[0, :-1].tolist() == latency[0, :-1].tolist()
    assert padding.waits_us.tolist() == [[0.0, us - 25.0, 0.0]]
    assert padding.unpadded_us.tolist() == latency.tolist()
    assert padding.stopped_by(0, 1) == (
        "no graph of 600 tokens: 10 kernels launched one by one, 23 us each as in published eager "
        "steps of SGLang"
    )
    assert padding.stopped_by(0, 0) is None
    assert padding.stopped_by(0, 2) is None


def test_launches_limit_a_model_that_is_cut_into_small_parts() -> None:
    """If N would pass in a larger graph, the graphs limit it, with file and lines."""
    parts = Parallel(tp=8)
    query = deployment(
        batch=128, platform="h100", graphs=VLLM, parallel=parts, served=True, context=256
    )
    timed_forward = timed(query)
    padding, grid = timed_forward.padding, timed_forward.grid.tolist()
    assert padding is not None
    first = next(at for at, step in enumerate(padding.steps[0]) if step.size is None)
    assert grid[first] == 5
    held = timed_forward.latency_us[0, -1, 0]
    for at, n in enumerate(grid):
        device_us = timed_forward.latency_us[0, :-1, at].sum()
        launching_us = LAUNCH_US * launch_count(query.uses(), query.decoder.layers)
        waited = max(launching_us - device_us, 0.0) if n > 4 else 0.0
        assert timed_forward.latency_us[0, -1, at] == pytest.approx(held + waited)
    graph_alone = timed_forward.unpadded_us[0, :, first].sum() / timed_forward.model_us[0, 0]
    epsilon = float(np.ceil(100 * graph_alone) / 100 - 1)
    (row,) = (
        forecast_of(query, epsilon=epsilon, predictors=["work_model"], full=False)
        .answers.filter(composition="sum")
        .to_dicts()
    )
    assert row["n_max"] == 4
    assert str(row["limiting_term"]).startswith("no graph of 640 tokens: ")
    assert "vllm/config/vllm.py L" in str(row["evidence"])
    assert row["limiting_module"] == HOST
    (further,) = (
        forecast_of(query, epsilon=0.99, predictors=["work_model"], full=False)
        .answers.filter(composition="sum")
        .to_dicts()
    )
    assert (further["limiting_module"], further["limiting_term"]) == (HOST, row["limiting_term"])


def test_without_graphs_nothing_is_padded() -> None:
    """A deployment without graphs is not padded, beside one with graphs."""
    plain, engine = deployment(batch=3), deployment(batch=3, graphs=VLLM)
    alone = timed(plain)
    both = total(Questions([plain, engine], SMALL), ANSWERER)
    assert alone.padding is None
    assert np.array_equal(both.latency_us[0], alone.latency_us[0])
    assert not np.array_equal(both.latency_us[1], alone.latency_us[0])
    assert both.grid.tolist() == SMALL


@pytest.mark.parametrize("graphs", [VLLM, SGLANG])
@pytest.mark.parametrize("batch", [1, 3, 9, 33, 600])
def test_products_run_the_rows_of_the_graph(graphs: Graphs, batch: int) -> None:
    """T of each module is that of one request with the graph's rows, attention's of N itself."""
    timed_forward = timed(deployment(batch=batch, graphs=graphs))
    steps = timed_forward.padding.steps[0] if timed_forward.padding else []
    by_rows = sorted({1, *(step.rows for step in steps)})
    one, own = timed(deployment(), by_rows), timed(deployment(batch=batch))
    for at, (n, step) in enumerate(zip(SMALL, steps, strict=True)):
        for place, role in timed_forward.roles[0].items():
            expected = one.latency_us[0, place, by_rows.index(step.rows)]
            if role == ATTENTION:
                expected = own.latency_us[0, place, at]
            if role != HOST:
                assert timed_forward.latency_us[0, place, at] == expected
        assert step.padded == (step.rows > batch * n)


@pytest.mark.parametrize("model", ["mixtral_8x7b", "qwen3_30b_a3b", DENSE])
def test_batches_of_one_graph_differ_by_attention_and_host_alone(model: str) -> None:
    """From b = 9 to 16 a step runs 16 rows, and no step of more requests is shorter."""
    queries = [deployment(model, batch=batch, graphs=VLLM, served=True) for batch in range(9, 17)]
    forward = total(Questions(queries, [1]), ANSWERER)
    for place, role in forward.roles[0].items():
        if role not in (ATTENTION, HOST):
            assert len({*forward.latency_us[:, place, 0].tolist()}) == 1
    assert (np.diff(forward.model_us[:, 0]) > 0).all()


def test_one_request_of_a_speculating_engine_is_not_padded() -> None:
    """At b = 1 a graph of q tokens is captured for any q, by both engines."""
    for graphs in (VLLM, SGLANG):
        timed_forward = timed(deployment(graphs=graphs))
        assert np.array_equal(timed_forward.latency_us, timed(deployment()).latency_us)


@pytest.mark.slow
def test_a_graph_is_named_where_it_ends_the_range() -> None:
    """If N would pass unpadded, its graph limits it, with file and lines."""
    old = replace(VLLM, engine=BackendRelease("vllm", "0.9.1"))
    named = []
    for batch in range(1, 65, 6):
        query = deployment(batch=batch, graphs=old)
        for epsilon in (0.05, 0.1):
            rows = forecast_of(
                query, epsilon=epsilon, predictors=["work_model"], full=False
            ).answers
            for row in rows.filter(composition="sum").to_dicts():
                timed_forward = timed(query, GRID)
                after = int(row["n_max"] or 0)
                if row["censored"]:
                    continue
                own = timed_forward.unpadded_us[0, :, after].sum()
                passes = own <= (1 + epsilon) * timed_forward.model_us[0, 0]
                graph = str(row["limiting_term"]).startswith("graph of ")
                assert graph == passes
                assert ("vllm/config.py L" in str(row["evidence"])) == graph
                named.append(graph)
    assert any(named)
    assert not all(named)


def test_a_release_without_rules_is_refused() -> None:
    """T(N) is refused for a release without rules of its sizes; others are answered."""
    unknown = replace(VLLM, engine=BackendRelease("vllm", "0.1.0"))
    total_us = total(Questions([deployment(graphs=unknown), deployment()], SMALL), ANSWERER)
    assert str(total_us.refusals[0]).startswith("captured graphs: no rules of vllm-graphs 0.1.0")
    assert total_us.refusals[1] is None


def spec(**changes: Any) -> DeploymentSpec:
    """Return one deployment on an H100."""
    given = {"models": (DENSE,), "platforms": ("h100",), "graphs": "engine"}
    return DeploymentSpec(**(given | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "engine"),
    [
        ({}, "vllm 0.33.0"),
        ({"graphs": "none"}, None),
        ({"graphs": "sglang"}, "sglang 0.5.23"),
        ({"graphs": "vllm==0.24.0"}, "vllm 0.24.0"),
        ({"attention": ("vllm-fa3==0.14.0",)}, "vllm 0.33.0"),
        ({"moe": ("sglang",)}, "sglang 0.5.23"),
        ({"models": ("mixtral_8x7b",), "moe": ("vllm==0.20.2",)}, "vllm 0.20.2"),
        ({"models": ("mixtral_8x7b",), "moe": ("sglang==0.5.14",)}, "sglang 0.5.14"),
        ({"models": ("mixtral_8x7b",), "moe": ("vllm==0.21.0",)}, "vllm 0.21.0"),
    ],
)
def test_the_engine_is_the_deployments_own(changes: dict[str, Any], engine: str | None) -> None:
    """The engine is the experts', or the named one, else the newest recorded."""
    (query,) = deployments(CONFIG, spec(routing=("balanced",), **changes))
    assert (str(query.graphs.engine) if query.graphs else None) == engine
    assert query.about.get("graphs") == engine


@pytest.mark.parametrize(
    ("changes", "attention"),
    [
        ({"attention": ("vllm-fa3==0.33.0",)}, "flash_attn"),
        ({"attention": ("flashinfer==0.6.13",)}, "flashinfer"),
        ({"attention": ("vllm-triton==0.33.0",)}, "triton_attn"),
        ({"attention": ("flashinfer==0.6.13",), "graphs": "sglang"}, None),
    ],
)
def test_the_graphs_know_what_attends(changes: dict[str, Any], attention: str | None) -> None:
    """Which attention leaves vLLM's graphs is a matter of its own backends."""
    (query,) = deployments(CONFIG, spec(**changes))
    assert query.graphs
    assert query.graphs.attention == attention


def test_what_has_no_graphs_is_refused() -> None:
    """A backend that is no engine, and a machine without CUDA, are refused."""
    with pytest.raises(ConfigError, match="no engine with CUDA graphs"):
        deployments(CONFIG, spec(graphs="flash-attn"))
    with pytest.raises(ConfigError, match="has no CUDA graphs"):
        deployments(CONFIG, spec(graphs="vllm", platforms=("cpu",)))
    (query,) = deployments(CONFIG, spec(platforms=("cpu",)))
    assert query.graphs is None
