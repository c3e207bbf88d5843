"""T(N) of collectives: waiting, sending, and the rank with the most work."""

from typing import Any

import numpy as np
import polars as pl
import pytest
from nearfree.core.modules.collective import (
    MULTICAST,
    ONE_SHOT,
    RING,
    WITH_NORM,
    load_imbalance,
    sent_ratio,
)
from nearfree.derive.reference.places import rule_places, stop_terms
from nearfree.derive.work_model.all_reduce import ALGORITHMS
from nearfree.derive.work_model.collective import EXCHANGES
from nearfree.derive.work_model.families import FAMILIES
from nearfree.derive.work_model.family import Array, Features

from derive.questions import RESOLVER
from derive.work_model.forms import EXCHANGE, REDUCE, facts_of, prepared, start

NCCL = {**REDUCE, "backend": "nccl", "kernel": "NCCL", "platform": "h100"}
DEEPEP = {**EXCHANGE, "backend": "sglang", "kernel": "deepep_ll", "platform": "h200"}


def features(**question: Any) -> Features:
    """Return the arrays of one question."""
    (part,) = prepared(question)
    return part.features


def times(name: str, given: Features, **changes: float) -> Array:
    """Return T(N) with the constants at which calibration starts, some of them changed."""
    family = FAMILIES[name]
    return family.latency_us(given, start(family, **changes), family.hypotheses[0])


def test_bytes_and_steps_are_those_of_the_operation() -> None:
    """A gather sends half the bytes of an all-reduce in half the steps, over the same link."""
    reduce, gather = features(**NCCL), features(**NCCL | {"operation": "all_gather"})
    assert (reduce["steps"].item(), gather["steps"].item()) == (14, 7)
    assert np.allclose(reduce["sent"], 2 * gather["sent"])
    assert reduce["link"].item() == 450e3
    assert reduce["sent"][0, 0] == 8192 * 2 * 14 / 8


def test_large_messages_take_what_links_take() -> None:
    """For large N T(N) / N approaches a position's bytes over the used share of the link."""
    given = dict(features(**NCCL | {"operation": "all_gather"}))
    given["sent"] = given["sent"] * 1e6
    latency_us = times("collective_nccl", given, simple_share=0.5, ll_share=0.02)
    assert latency_us == pytest.approx(given["sent"] / (0.5 * 450e3), rel=0.01)


def test_own_kernels_wait_in_rounds() -> None:
    """A kernel whose message exceeds its grid takes the time of all its rounds."""
    given = features(**REDUCE | {"gpus": 2, "backend": "vllm", "kernel": "vLLM_custom_graph",
                                 "backend_version": "0.14.0", "platform": "h100"})  # fmt: skip
    few = {**given, "sent": given["sent"] * 1e-6}
    latency_us = times("collective_graph", few, one_shot_round_us=9.0, one_shot_hop_us=0.0,
                  one_shot_fixed_us=1.0, nccl_fixed_us=1.0, nccl_hop_us=0.0)  # fmt: skip
    assert latency_us == pytest.approx(1.0 + 9.0 * given["rounds"], rel=1e-3)


@pytest.mark.parametrize(
    ("platform", "kernel", "algorithm", "like"),
    [
        ("b200", "sglang_graph", "push_two_shot", "pull"),
        ("h100", "sglang_graph", "pull_multicast", "multicast"),
        ("b200", WITH_NORM, "flashinfer_one_shot", "push"),
        ("b200", WITH_NORM, "flashinfer_two_shot", "pull"),
    ],
)
def test_what_no_table_measures_is_timed_as_its_like(
    platform: str, kernel: str, algorithm: str, like: str
) -> None:
    """An unmeasured algorithm has the time of one that sends equal bytes equally often.

    Where a sweep chose it over a push, it takes at most the time of a push.
    """
    own = features(**REDUCE | {"backend": "sglang", "backend_version": "0.5.23",
                               "kernel": kernel, "platform": platform})  # fmt: skip
    places = own["algorithm"].astype(int)
    assert algorithm in {ALGORITHMS[index] for index in places.ravel()}
    mine = places == ALGORITHMS.index(algorithm)
    alike = {**own, "algorithm": np.where(mine, ALGORITHMS.index(like), places)}
    like_us = times("collective_graph", alike)
    if like == "pull":
        pushed = {**own, "algorithm": np.full_like(own["algorithm"], ALGORITHMS.index("push"))}
        pushed["sent"] = pushed["pushed"]
        push_us = times("collective_graph", pushed)
        assert (push_us < like_us)[mine].any()
        assert (push_us > like_us)[mine].any()
        like_us = np.where(mine, np.minimum(like_us, push_us), like_us)
    assert times("collective_graph", own) == pytest.approx(like_us)
    sent_as = {"multicast": MULTICAST, "push": ONE_SHOT}.get(like, RING)
    share = sent_ratio("all_reduce", 8, sent_as)
    assert own["sent"][mine] == pytest.approx(share * own["payload"][mine])


@pytest.mark.parametrize(("dtype", "larger"), [("bfloat16", "multicast"), ("float16", "nccl")])
def test_the_element_type_decides_which_algorithm_runs(dtype: str, larger: str) -> None:
    """Symmetric memory of vLLM sums only bfloat16."""
    given = features(**REDUCE | {"backend": "vllm", "kernel": "vLLM_custom_graph",
                                 "backend_version": "0.33.0", "platform": "h100",
                                 "dtype": dtype})  # fmt: skip
    algorithms = {ALGORITHMS[code] for code in given["algorithm"].astype(int).ravel()}
    assert algorithms == {"one_shot", larger}


def test_an_eager_one_takes_the_host_s_time() -> None:
    """A collective that the host launches takes at least the time of a launch."""
    given = features(**REDUCE | {"backend": "vllm", "kernel": "vLLM_custom_eager"})
    family = FAMILIES["collective_eager"]
    latency_us = times("collective_eager", given, host_us=150.0)
    graph = FAMILIES["collective_graph"].latency_us(given, start(family), "rules")
    assert latency_us == pytest.approx(np.maximum(150.0, graph))


@pytest.mark.parametrize("name", [exchange.name for exchange in EXCHANGES])
def test_the_busiest_rank_sets_the_time(name: str) -> None:
    """If one rank has all used experts, the mean over ranks underestimates T(N) by far."""
    of = {exchange.name: exchange for exchange in EXCHANGES}[name]
    backend = next(b for b in ("sglang", "vllm", "trtllm") if of.covers(b, _kernel(name), False))  # noqa: FBT003
    question = {**DEEPEP, "backend": backend, "kernel": _kernel(name)}
    even, skewed = (features(**question, routing=routing) for routing in ("balanced", "skewed"))
    many = {"sent": even["sent"] * 0 + 32e6}
    mean = times(name, {**even, **many})
    busy = times(name, {**skewed, "sent": many["sent"] * 8})
    assert np.allclose(skewed["sent"][:, :1] / skewed["n"][:, :1],
                       8 * even["sent"][:, :1] / even["n"][:, :1])  # fmt: skip
    assert (busy > 1.2 * mean).all()


def _kernel(name: str) -> str:
    short = "deepep_ll" if "low" in name else "deepep_ht_20_sms"
    if name.endswith("trtllm"):
        return f"trtllm_{short}"
    return "deepep_normal_20_sms" if name == "exchange_normal" else short


def test_a_power_law_s_busiest_rank_is_missed_by_the_mean() -> None:
    """With 128 experts under a power law of 1.2 on 8 ranks the mean misses T by over a fifth.

    Experts are placed in the order of a seed, so that no rank is given the popular ones.
    """
    law = np.arange(1, 129) ** -1.2
    loads = np.random.default_rng(0).permutation(law)
    load = load_imbalance(loads.tolist(), 8)
    given = features(**DEEPEP | {"experts": 128, "d_model": 2048, "routing": None})
    rows = 128 / given["n"][:, -1:]
    mean = times("exchange_low_latency", {**given, "sent": given["sent"] * rows})
    busy = times("exchange_low_latency", {**given, "sent": given["sent"] * rows * load})
    assert load > 1.5
    assert (busy / mean)[0, -1] > 1.2


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"platform": "mi300x"}, "no bandwidth between the GPUs of mi300x"),
        ({"platform": "h20", "gpus": 16}, "16 GPUs are more than a node of h20"),
        ({"platform": "rtx_4090", "gpus": 16}, "16 GPUs are more than a node of rtx_4090"),
        ({"gpus": 16}, "no constants between nodes for the all_reduce of nccl, where a node has 8"),
        ({"gpus": 2, "nodes": 2}, "no constants between nodes for the all_reduce of nccl"),
        ({"gpus": 16, "operation": "all_to_all"}, "no constants between nodes for the all_to_all"),
        ({"platform": "l40s", "operation": "send", "gpus": 2, "nodes": 2}, "no network is known"),
        ({"routing": "power_law"}, "power_law routing says no load of the busiest rank"),
    ],
)
def test_what_is_not_known_is_refused(changes: dict[str, Any], what: str) -> None:
    """An unknown link, node size, network, constant between nodes or load is refused by name."""
    from nearfree.derive.work_model.families import family_of, times_refusal

    rows = facts_of(NCCL | changes)
    judged = rows.with_columns(family_of(rows)).select(times_refusal().alias("refusal"))
    assert what in judged["refusal"].item()
    unknown = pl.lit(None, pl.Int64).alias("node_gpus")
    judged = facts_of(NCCL).with_columns(unknown).with_columns(family_of(rows))
    assert "how many GPUs a node of" in judged.select(times_refusal()).item()


def test_between_nodes_a_ring_has_the_network_and_its_hops() -> None:
    """Among 16 GPUs on two nodes one hop of NCCL uses the network, whose cards eight GPUs share.

    Two GPUs on two nodes, such as those of two pipeline stages, have a card each.
    """
    gather = NCCL | {"operation": "all_gather"}
    near, far = features(**gather), features(**gather | {"gpus": 16})
    send = features(**NCCL | {"operation": "send", "gpus": 2, "nodes": 2})
    facts = facts_of(NCCL)
    card = facts["network_gb_s"].item() * 1e3
    assert near["reached"].item() == facts["link_gb_s"].item() * 1e3
    assert [expected_us["nodes"].item() for expected_us in (near, far, send)] == [1, 2, 2]
    assert (far["reached"].item(), send["reached"].item()) == (8 * card, card)
    for gpus, fewest in ((9, 1), (12, 4), (24, 8)):
        assert features(**gather | {"gpus": gpus})["reached"].item() == fewest * card
    feature_values = features(**gather | {"gpus": 5, "nodes": 2, "fewest": 1})
    assert feature_values["reached"].item() == card
    given = {"simple_fixed_us": 5.0, "hop_us": 1.0, "simple_share": 0.5, "ll_share": 1e-6}
    for expected_us, hops in ((far, 14 * 1.0 + 14.0), (send, 14.0)):
        expected = 5.0 + hops + expected_us["sent"] / (0.5 * expected_us["reached"])
        assert times("collective_nccl", expected_us, **given) == pytest.approx(expected)


def test_what_stops_a_collective_is_said() -> None:
    """Beyond its plateau the limit of a collective is its bytes or a switch of its algorithm."""
    (part,) = prepared(REDUCE | {"backend": "vllm", "kernel": "vLLM_custom_graph",
                                 "backend_version": "0.14.0", "platform": "h100"})  # fmt: skip
    places = np.arange(part.counts.shape[1] - 1)
    switched = part.features["algorithm"]
    terms = [
        stop_terms(part, *(np.array([index]) for index in (0, at, at + 1)))[0] for at in places
    ]
    expected = [
        "bytes between GPUs" if switched[0, at] == switched[0, at + 1]
        else "all-reduce one_shot -> two_shot"
        for at in places
    ]  # fmt: skip
    assert terms == expected
    assert "all-reduce one_shot -> two_shot" in terms
    (place,) = rule_places(part.family, part.rows, [1], RESOLVER)
    assert "custom_all_reduce.cuh:592" in place
