"""Time of launches without graphs: published calls, and the questions whose T it bounds below."""

from math import prod

import numpy as np
import polars as pl
import pytest
from nearfree.config.files import Config
from nearfree.derive.predict.answers import Answerer
from nearfree.derive.work_model.launches import CALL_US, LAUNCH_US, eager_us

from derive.questions import LOG, MOE, ROOT, ask


def test_a_launch_takes_what_two_published_steps_say() -> None:
    """Llama 3 8B without graphs: 9.28 ms of 390 launches, 8.23 ms of 358; the less counts."""
    assert pytest.approx(9280 / 390, abs=1.0) == LAUNCH_US
    assert pytest.approx(8230 / 358, abs=0.1) == LAUNCH_US


def test_a_call_of_experts_takes_what_three_machines_say() -> None:
    """Each machine has a time per launched call; the one with two engines has their mean."""
    machines = (3600 / 25 / 9, 6311.1 / 25 / 8, (350 / 9 * 365 / 12) ** 0.5)
    assert pytest.approx(prod(machines) ** (1 / 3), abs=0.2) == CALL_US


def test_only_experts_that_are_launched_one_by_one_wait() -> None:
    """Before 0.10.0 vLLM's code had two calls more; graphs, libraries and products have none."""
    question_rows = {
        "vllm_0_9_1": 7, "vllm 0.9.2": 7, "vllm 0.10.0": 5, "vllm 0.20.2": 5,
        "sglang_0_5_9": 5, "sglang 0.5.23": 5, "trtllm 1.0.0": 0,
    }  # fmt: skip
    names = [name.partition(" ") for name in question_rows]
    rows = pl.DataFrame({
        "module": "moe_ffn",
        "launch": "eager",
        "backend": [name for name, _, _ in names],
        "backend_version": [version or None for _, _, version in names],
    })  # fmt: skip
    assert eager_us(rows).tolist() == [[CALL_US * calls] for calls in question_rows.values()]
    graphs = rows.with_columns(pl.lit("graph").alias("launch"))
    products = rows.with_columns(pl.lit("dense_ffn").alias("module"))
    for none in (graphs, products, rows.drop("launch"), rows.clear()):
        assert eager_us(none).tolist() == [[0.0]] * none.height


def test_the_host_is_a_floor_that_hides_what_is_fixed() -> None:
    """T(N) is flat while experts take less than the launches, then below T(N) within a graph."""
    skewed = {**MOE, "backend": "sglang", "routing": "skewed", "d_ff": 1024}
    one = ask({**skewed, "platform": "h20", "backend_version": "0.5.9"})
    answerer = Answerer(LOG, Config(ROOT / "config"), offline=True, log_alone=True)
    times = {}
    for launch in ("graph", "eager"):
        question_rows = one.with_columns(pl.lit(launch).alias("launch"))
        (timed,) = answerer.timed(question_rows).curves()
        times[launch] = timed.latency_us[0]
        (text,) = answerer.answers(question_rows, [0.2], ["work_model"])["constants"]
        assert text.startswith("launches of 130 us at least; ") == (launch == "eager")
    floor = 5 * CALL_US
    eager, graph = times["eager"], times["graph"]
    assert eager[0] == floor > graph[0]
    assert np.all(eager >= floor)
    assert np.all(eager[eager > floor] < graph[eager > floor])
    assert (eager > floor).any()
