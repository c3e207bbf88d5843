"""T(N) of collectives: each form equals its scalar formula, and which kernel has which form."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nearfree.derive.work_model.all_reduce import ALGORITHMS
from nearfree.derive.work_model.collective import COLLECTIVES, EXCHANGES
from nearfree.derive.work_model.families import FAMILIES

from derive.work_model.forms import constants

Values = dict[str, float]
BYTES = st.floats(1.0, 1e10)
LINK = st.floats(1e3, 2e6)
FLAG = st.booleans()
GPUS = st.integers(2, 72)
LIKE = {
    "push_two_shot": "pull", "pull_multicast": "multicast",
    "flashinfer_one_shot": "push", "flashinfer_two_shot": "pull",
}  # fmt: skip
"""Algorithms that no table measures, and what each is timed as."""
AT_MOST_A_PUSH = ("push_two_shot", "flashinfer_two_shot")
"""Those that run where a sweep found a push slower."""
RECENT = ("push", "pull", *LIKE)
"""SGLang's later kernels, and FlashInfer's."""


def latency_of(name: str, values: Values, hypothesis: str = "", **facts: float) -> float:
    """Return T of a form for one rank, at one N, in microseconds."""
    features = {fact: np.array([[float(value)]]) for fact, value in facts.items()}
    family = FAMILIES[name]
    return float(family.latency_us(features, values, hypothesis or family.hypotheses[0]).item())


def both(one: float, other: float) -> float:
    """Return the time of two parts that overlap partly: (one^3 + other^3)^(1/3)."""
    return float(np.cbrt(one**3 + other**3))


@given(
    values=constants(FAMILIES["collective_eager"]),
    place=st.integers(0, len(ALGORITHMS) - 1),
    sent=BYTES, pushed=BYTES, link=LINK, rounds=st.integers(1, 5000), gpus=GPUS, nvlink5=FLAG,
    grace=FLAG,
)  # fmt: skip
def test_an_engine_s_all_reduce_waits_by_ranks_and_sends_over_a_link(
    *, values: Values, place: int, sent: float, pushed: float, link: float, rounds: int, gpus: int,
    nvlink5: bool, grace: bool,
) -> None:  # fmt: skip
    """T = w (fixed + hop (g - 1)) + S / (a link); loads of the own kernels overlap with the bytes.

    Where a sweep chose an unmeasured algorithm over a push, T is at most that of a push.
    If the host launches it, T is at least the time of a launch, which is longer with a Grace CPU.
    """
    facts = {
        "algorithm": place, "sent": sent, "pushed": pushed, "link": link, "rounds": rounds,
        "gpus": gpus, "nvlink5": nvlink5, "grace": grace,
    }  # fmt: skip
    own = ALGORITHMS[place]
    name = LIKE.get(own, own)
    slower = values["nvlink5"] if nvlink5 else 1.0
    sends = sent / (values[f"{name}_share"] * link)
    if name in ("one_shot", "two_shot"):
        sends = both(sends, slower * values[f"{name}_round_us"] * rounds)
    waits = values[f"{name}_fixed_us"] + values[f"{name}_hop_us"] * (gpus - 1)
    graph = slower * waits + sends
    if own in AT_MOST_A_PUSH:
        waits = values["push_fixed_us"] + values["push_hop_us"] * (gpus - 1)
        graph = min(graph, slower * waits + pushed / (values["push_share"] * link))
    assert latency_of("collective_graph", values, **facts) == pytest.approx(graph)
    launch = values["recent_host_us" if own in RECENT else "host_us"]
    launch *= values["grace"] if grace else 1.0
    time_us = latency_of("collective_eager", values, **facts)
    assert time_us == pytest.approx(max(launch, graph))


@given(
    values=constants(FAMILIES["collective_nccl"]), apart=constants(FAMILIES["collective_trtllm"]),
    sent=BYTES, switched=BYTES, link=LINK, reached=LINK, steps=st.integers(1, 142),
    nodes=st.integers(1, 2), nvlink5=FLAG, nvls=FLAG, exchange=FLAG,
)  # fmt: skip
def test_nccl_takes_the_fastest_of_its_protocols(
    *, values: Values, apart: Values, sent: float, switched: float, link: float, reached: float,
    steps: int, nodes: int, nvlink5: bool, nvls: bool, exchange: bool,
) -> None:  # fmt: skip
    """T is the least of LL, Simple and, where it may be used, the switch; hops between nodes add.

    A step takes equal time with LL and Simple, except for TensorRT-LLM's kernels and their
    successors.
    """
    facts = {
        "sent": sent, "switched": switched, "link": link, "reached": reached, "steps": steps,
        "nodes": nodes, "nvlink5": nvlink5, "nvls": nvls, "exchange": exchange,
    }  # fmt: skip
    far = nodes - 1
    for name, of in (("collective_nccl", values), ("collective_trtllm", apart)):
        slower = of["nvlink5"] if nvlink5 else 1.0
        own = of["exchange_us"] if exchange else 0.0
        times = []
        for protocol, network in (("ll", 2.7), ("simple", 14.0)):
            hop = of["hop_us" if name == "collective_nccl" else f"{protocol}_hop_us"]
            waits = slower * (of[f"{protocol}_fixed_us"] + own + hop * (steps - far))
            sends = sent / (of[f"{protocol}_share"] * reached)
            times.append(waits + network * far + sends)
        if nvls:
            bytes_us = of["nvls_share"] * link
            times.append(slower * of["nvls_fixed_us"] + switched / bytes_us)
        assert latency_of(name, of, **facts) == pytest.approx(min(times))


def less_sharp(one: float, other: float) -> float:
    """Return the time of two parts that overlap over PCIe: (one^1.5 + other^1.5)^(2/3)."""
    return float((one**1.5 + other**1.5) ** (2 / 3))


@given(
    values=constants(FAMILIES["collective_pcie"]),
    sent=BYTES, link=LINK, steps=st.integers(1, 14), gpus=st.integers(2, 8), direct=FLAG,
    own=FLAG, eager=FLAG,
)  # fmt: skip
def test_over_pcie_gpus_beyond_two_share_paths(
    *, values: Values, sent: float, link: float, steps: int, gpus: int, direct: bool, own: bool,
    eager: bool,
) -> None:  # fmt: skip
    """Among more than two GPUs a path bounds the rate; through the host all share one path.

    With LL all GPUs share either path. An own kernel's T is a line, at least the host's launch.
    """
    times = []
    for name, sharing in (("ll", gpus), ("simple", 1)):
        rates = [values[f"{name}_share"] * link]
        if gpus > 2:
            rates.append(values[f"{name}_path_bytes_us"] / sharing)
        if not direct:
            rates.append(values["host_share"] * link / gpus)
        waits = values[f"{name}_fixed_us"] + values[f"{name}_hop_us"] * steps
        times.append(less_sharp(waits, sent / min(rates)))
    expected = min(times)
    if own:
        expected = values["own_fixed_us"] + sent / (values["own_share"] * link)
    if eager:
        expected = max(expected, values["host_us"])
    time_us = latency_of("collective_pcie", values, sent=sent, link=link, steps=steps, gpus=gpus,
                  direct=direct, own=own, eager=eager)  # fmt: skip
    assert time_us == pytest.approx(expected)


@pytest.mark.parametrize("name", [exchange.name for exchange in EXCHANGES])
@given(
    data=st.data(),
    sent=st.floats(0.0, 1e10), between=BYTES, link=LINK, network=LINK,
    sms=st.integers(1, 132), gpus=GPUS, nodes=st.integers(1, 9), nvlink5=FLAG,
)  # fmt: skip
def test_an_exchange_moves_rows_inside_a_node_and_between_nodes(
    name: str, *, data: st.DataObject, sent: float, between: float, link: float, network: float,
    sms: int, gpus: int, nodes: int, nvlink5: bool,
) -> None:  # fmt: skip
    """Waiting grows up to the eighth rank; links and copying SMs overlap; the network adds."""
    values = data.draw(constants(FAMILIES[name]))
    slower = values["nvlink5"] if nvlink5 else 1.0
    moved = max(sent, 1.0)
    inside = both(moved / (values["share"] * link), moved / (values["sm_bytes_us"] * sms))
    expected = slower * (values["fixed_us"] + values["hop_us"] * (min(gpus, 8) - 1)) + inside
    if nodes > 1 and "network_share" in values:
        expected += values["network_us"] + between / (values["network_share"] * network)
    facts = {
        "sent": sent, "between": between, "link": link, "network": network, "copying_sms": sms,
        "gpus": gpus, "nodes": nodes, "nvlink5": nvlink5,
    }  # fmt: skip
    assert latency_of(name, values, **facts) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("backend", "kernel", "family"),
    [
        ("vllm", None, "collective_graph"),
        ("vllm", "vLLM_custom_graph", "collective_graph"),
        ("sglang", "SGLang_graph", "collective_graph"),
        ("vllm", "vLLM_custom_eager", "collective_eager"),
        ("sglang", "SGLang_eager", "collective_eager"),
        ("nccl", None, "collective_nccl"),
        ("trtllm", None, "collective_trtllm"),
        ("trtllm", "TRTLLM_MNNVL", "collective_trtllm"),
        ("trtllm", "trtllm_deepep_ht", "exchange_normal_trtllm"),
        ("trtllm", "trtllm_deepep_ll", "exchange_low_latency_trtllm"),
        ("vllm", "deepep_ll", "exchange_low_latency_vllm"),
        ("vllm", "deepep_v2_generation", "exchange_low_latency_vllm"),
        ("vllm", "deepep_ht_24_sms", "exchange_normal_vllm"),
        ("vllm", "deepep_v2_context", "exchange_normal_vllm"),
        ("sglang", "deepep_ll", "exchange_low_latency"),
        ("sglang", "deepep_normal_24_sms", "exchange_normal"),
        ("sglang", "deepep_ht", None),
        ("trtllm", "deepep_ll", None),
        ("vllm", "TRTLLM", None),
        ("trtllm", "another", None),
        ("torch", "graph", None),
        ("torch", "eager", None),
        ("vllm", "another", None),
    ],
)
def test_a_collective_has_the_form_of_its_backend_and_kernel(
    backend: str, kernel: Any, family: str | None
) -> None:
    """Each backend and kernel has exactly one form; a kernel without a form is refused."""
    of = [form.name for form in COLLECTIVES if form.covers(backend, kernel, False)]  # noqa: FBT003
    assert of == ([family] if family else [])
