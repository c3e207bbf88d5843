"""T(N) of collectives: latencies of synchronisation, and bytes over links.

A collective begins and ends with flags that every rank must see, so it takes a fixed time plus a
time for each rank besides the first. The bytes sent cross a GPU's links at a share of their
bandwidth. Public tables show that both latencies are longer over NVLink 5.
"""

from functools import partial

import numpy as np

from nearfree.core.modules.collective import WITH_NORM
from nearfree.derive.work_model.all_reduce import (
    ALGORITHMS,
    FASTER_THAN_PUSH,
    FLASHINFER_ONE_SHOT,
    FLASHINFER_TWO_SHOT,
    NCCL,
    ONE_SHOT,
    PULL,
    PUSH,
    SWITCHED_PULL,
    TIMED_AS,
    TWO_PUSHES,
    TWO_SHOT,
)
from nearfree.derive.work_model.family import (
    Array,
    Constant,
    Family,
    Features,
    Limit,
    Values,
    power_mean_sum,
)
from nearfree.derive.work_model.links import (
    PAIR,
    algorithm_features,
    collective_features,
    exchange_features,
    pcie_features,
)

COLLECTIVE = ("collective",)
"""The module kind of these forms."""
_SHARPNESS = 3.0
"""p: how well a kernel hides the latency of its loads behind their bytes."""
_PCIE_SHARPNESS = 1.5
"""p over PCIe: how well a collective hides its latencies behind its bytes."""
_ROUNDED = (ONE_SHOT, TWO_SHOT)
BY_HOPS = ("send", "all_gather", "reduce_scatter")
"""Operations that NCCL runs only as a ring, or in one hop, which fixes the hops between nodes: one
less than the nodes (src/graph/tuning.cc, nInterSteps)."""
_NETWORK_HOP_US = {"ll": 2.7, "simple": 14.0}
"""Latency of a hop between nodes, by protocol: NCCL, src/graph/tuning.cc, hwLatencies of a ring
over the network."""
_RECENT = [
    ALGORITHMS.index(name)
    for name in (PUSH, PULL, TWO_PUSHES, SWITCHED_PULL, FLASHINFER_ONE_SHOT, FLASHINFER_TWO_SHOT)
]


def _wait_factor(features: Features, values: Values) -> Array:
    """Return w, the factor of all latencies, [rows, 1]."""
    return np.asarray(np.where(features["nvlink5"] > 0, values["nvlink5"], 1.0))


def graph_us(features: Features, values: Values, _hypothesis: str) -> Array:
    """Return T(N) of an engine's all-reduce in a CUDA graph, [rows, grid], in microseconds.

    For each algorithm T = w (fixed + hop (g - 1)) + S_sent / (a link), where w is 1, and larger
    over NVLink 5. The own kernels load in rounds of one latency each, which overlap with the bytes:
    their second term is ((S_sent / (a link))^3 + (w rounds round)^3)^(1/3). Features are those of
    `algorithm_features`.
    """
    total_us = np.zeros(features["sent"].shape)
    push_us = _algorithm_us(PUSH, features, values, features["pushed"])
    for index, algorithm in enumerate(ALGORITHMS):
        timed_as = TIMED_AS.get(algorithm, algorithm)
        time_us = _algorithm_us(timed_as, features, values, features["sent"])
        if algorithm in FASTER_THAN_PUSH:
            time_us = np.minimum(time_us, push_us)
        total_us = np.where(features["algorithm"] == index, time_us, total_us)
    return total_us


def _algorithm_us(name: str, features: Features, values: Values, sent: Array) -> Array:
    """Return T(N) of one measured algorithm, [rows, grid], if a rank sends so many bytes."""
    w = _wait_factor(features, values)
    transfer_us = sent / (values[f"{name}_share"] * features["link"])
    if name in _ROUNDED:
        rounds_us = w * values[f"{name}_round_us"] * features["rounds"]
        transfer_us = power_mean_sum(_SHARPNESS, transfer_us, np.maximum(rounds_us, 1e-9))
    hops_us = values[f"{name}_hop_us"] * (features["gpus"] - 1)
    return np.asarray(w * (values[f"{name}_fixed_us"] + hops_us) + transfer_us)


def eager_us(features: Features, values: Values, hypothesis: str) -> Array:
    """Return T(N) of an engine's all-reduce without a graph, [rows, grid]: at least a launch.

    SGLang's later kernels are launched by other code. Grace takes longer for either launch than the
    host CPUs of other GPUs. Features are those of `algorithm_features`.
    """
    recent = np.isin(features["algorithm"], _RECENT)
    launch_us = np.where(recent, values["recent_host_us"], values["host_us"])
    launch_us = launch_us * np.where(features["grace"] > 0, values["grace"], 1.0)
    return np.maximum(launch_us, graph_us(features, values, hypothesis))


def nccl_us(features: Features, values: Values, _hypothesis: str) -> Array:
    """Return T(N) of NCCL's collectives, [rows, grid]: the fastest of its protocols.

    T = min over protocols of w (fixed + hop steps) + S_sent / (a link). `steps` are g - 1, and
    twice that for an all-reduce. A step takes the same time in both protocols, since curves of few
    GPUs cannot separate it from the fixed time. The protocol LL sends a flag with each word, so at
    most half of the bytes sent are data. The switch can run an all-reduce of floats of 8 GPUs
    (NVLS); public tables have it from 32 MiB on, so that its fixed time is longer than a ring's.
    For BY_HOPS over several nodes, a hop between nodes takes NCCL's own estimate, and the link is a
    rank's share of the network times the ranks of the node with fewest, which is the number of
    channels of a ring.

    TensorRT-LLM's own kernels and NCCL beyond them have the same form, but the two are not
    protocols of one library: each has its own hop.

    Source: NCCL, src/graph/tuning.cc; src/init.cc, initTransportsRank (the least of all ranks).
    """
    w = _wait_factor(features, values)
    exchange_wait_us = values["exchange_us"] * features["exchange"]
    node_hops = features["nodes"] - 1.0
    own_hops = "hop_us" not in values
    times_us = [
        w * (values[f"{name}_fixed_us"] + exchange_wait_us)
        + w * values[f"{name}_hop_us" if own_hops else "hop_us"] * (features["steps"] - node_hops)
        + _NETWORK_HOP_US[name] * node_hops
        + features["sent"] / (values[f"{name}_share"] * features["reached"])
        for name in ("ll", "simple")
    ]
    switched_us = w * values["nvls_fixed_us"] + features["switched"] / (
        values["nvls_share"] * features["link"]
    )
    times_us.append(np.where(features["nvls"] > 0, switched_us, np.inf))
    return np.asarray(np.minimum.reduce(times_us))


def pcie_us(features: Features, values: Values, _hypothesis: str) -> Array:
    """Return T(N) over PCIe, [rows, grid]: the faster of NCCL's protocols, or an own kernel.

    For a protocol T = ((fixed + hop steps)^1.5 + (S_sent / rate)^1.5)^(1/1.5), where the rate is a
    share of a GPU's link. More than two GPUs are also limited by a path between them, which all of
    them share in LL. GPUs without direct access send through the host, where all share one path of
    about half a link. An engine's own kernel sums the buffers of two GPUs with direct access,
    T = fixed + S_sent / (a link). Without a graph T is at least a launch. Features are those of
    `pcie_features`.
    """
    link, gpus, sent = features["link"], features["gpus"], features["sent"]
    host_rate = np.where(features["direct"] > 0, np.inf, values["host_share"] * link / gpus)
    times_us = []
    for name, ranks in (("ll", gpus), ("simple", 1.0)):
        path_rate = np.where(gpus > PAIR, values[f"{name}_path_bytes_us"] / ranks, np.inf)
        rate = np.minimum(np.minimum(values[f"{name}_share"] * link, path_rate), host_rate)
        waits_us = values[f"{name}_fixed_us"] + values[f"{name}_hop_us"] * features["steps"]
        waits_us = np.broadcast_to(waits_us, sent.shape)
        times_us.append(power_mean_sum(_PCIE_SHARPNESS, waits_us, sent / rate))
    own_us = values["own_fixed_us"] + sent / (values["own_share"] * link)
    time_us = np.where(features["own"] > 0, own_us, np.minimum(*times_us))
    return np.maximum(time_us, np.where(features["eager"] > 0, values["host_us"], 0.0))


def exchange_us(features: Features, values: Values, _hypothesis: str) -> Array:
    """Return T(N) of a dispatch or combine, [rows, grid]: the time of the busiest rank.

    T = w (fixed + hop (g - 1)) + ((S / (a link))^3 + (S / (SMs c))^3)^(1/3), where S are the bytes
    that the busiest rank moves inside a node, and g is the number of GPUs, at most 8. Over several
    nodes far + S_net / (n network) is added, where S_net are the bytes moved between nodes.
    Features are those of `exchange_features`.
    """
    slower = _wait_factor(features, values)
    waits_us = values["fixed_us"] + values["hop_us"] * (np.minimum(features["gpus"], 8.0) - 1.0)
    node_us = power_mean_sum(
        _SHARPNESS,
        np.maximum(features["sent"], 1.0) / (values["share"] * features["link"]),
        np.maximum(features["sent"], 1.0) / (values["sm_bytes_us"] * features["copying_sms"]),
    )
    time_us = slower * waits_us + node_us
    if "network_share" in values:
        leaves_node = features["nodes"] > 1
        network_us = features["between"] / (values["network_share"] * features["network"])
        time_us = time_us + np.where(leaves_node, values["network_us"] + network_us, 0.0)
    return np.asarray(time_us)


def _hop(name: str, start: float) -> Constant:
    return Constant(f"{name}hop_us", "us", start, 0.0, 10.0,
                    "what each further rank or step adds to it")  # fmt: skip


def _straight(name: str, fixed: float, what: str, share: float = 0.6) -> tuple[Constant, ...]:
    return (
        Constant(f"{name}_fixed_us", "us", fixed, 0.2, 80.0, f"what {what} takes at least"),
        Constant(f"{name}_share", "1", share, 0.02, 1.2, "share of a link that it reaches"),
    )  # fmt: skip


def _waiting(name: str, fixed: float, what: str) -> tuple[Constant, ...]:
    fixed_us, share = _straight(name, fixed, what)
    return fixed_us, _hop(f"{name}_", 0.1), share


def _round(name: str) -> Constant:
    return Constant(f"{name}_round_us", "us", 1.0, 0.0, 10.0, "what one load from all ranks takes")


_NVLINK5 = Constant("nvlink5", "1", 1.5, 0.8, 4.0,
                    "w: how much longer waiting takes over NVLink 5")  # fmt: skip
_GRAPH = (
    *_waiting("one_shot", 4.0, "one shot of the engine's kernel"),
    _round("one_shot"),
    *_waiting("two_shot", 9.0, "two shots of it"),
    _round("two_shot"),
    *_waiting("multicast", 8.0, "torch's multicast"),
    *_waiting("torch_two_shot", 10.0, "torch's two shots"),
    *_waiting("push", 2.5, "SGLang's push"),
    *_waiting("pull", 8.0, "SGLang's pull"),
    *_waiting(NCCL, 15.0, "NCCL's all-reduce of all others"),
    _NVLINK5,
)
_LL, _SIMPLE = "the protocol of small messages", "the protocol of large messages"
_SWITCHED = (
    Constant("nvls_fixed_us", "us", 90.0, 60.0, 200.0,
             "what an all-reduce in the switch costs however few bytes"),
    Constant("nvls_share", "1", 0.7, 0.1, 1.2,
             "share of a link that an all-reduce in the switch reaches"),
    Constant("exchange_us", "us", 5.0, 0.0, 60.0,
             "what an all-to-all, sends and receives of their own, costs besides"),
    _NVLINK5,
)  # fmt: skip
_LARGE = (
    *_straight("ll", 8.0, _LL),
    *_straight("simple", 20.0, _SIMPLE),
    _hop("", 0.5),
    *_SWITCHED,
)
_TRTLLM = (*_waiting("ll", 8.0, _LL), *_waiting("simple", 20.0, _SIMPLE), *_SWITCHED)
_HOST = Constant("host_us", "us", 20.0, 1.0, 200.0, "what the host takes to launch one")
_OVER_PCIE = (
    *_straight("ll", 5.0, _LL, share=0.3),
    _hop("ll_", 1.5),
    Constant("ll_path_bytes_us", "B/us", 50e3, 1e3, 1e6,
             "what more than two GPUs that reach each other send by it, all of them"),
    *_straight("simple", 20.0, _SIMPLE),
    _hop("simple_", 5.0),
    Constant("simple_path_bytes_us", "B/us", 22e3, 1e3, 1e6,
             "what each of more than two GPUs that reach each other sends by it"),
    Constant("host_share", "1", 0.5, 0.02, 1.5,
             "share of a link that GPUs send through the host, all of them"),
    *_straight("own", 4.0, "an engine's own kernel of two GPUs"),
    _HOST,
)  # fmt: skip
_EXCHANGE = (
    Constant("fixed_us", "us", 15.0, 0.5, 400.0, "what it costs however few bytes"),
    Constant("hop_us", "us", 0.5, 0.0, 40.0, "what each further rank of a node adds"),
    Constant("share", "1", 0.6, 0.02, 1.3, "share of a link that rows reach"),
    Constant("sm_bytes_us", "B/us", 20000.0, 500.0, 1e6, "what one SM that copies rows can move"),
    _NVLINK5,
)  # fmt: skip
_BETWEEN = (
    Constant("network_us", "us", 50.0, 0.0, 1000.0, "what leaving a node costs however few bytes"),
    Constant("network_share", "1", 0.7, 0.02, 1.5, "share of the network that rows reach"),
)  # fmt: skip


_form = partial(
    Family,
    modules=COLLECTIVE,
    times=True,
    features=collective_features,
    limit=Limit("bytes between GPUs", "the bytes that GPUs send each other"),
    only_bytes=True,
)


def _exchange(name: str, backend: str, kernels: tuple[str, ...], *, far: bool) -> Family:
    """Return the form of dispatch and combine by one backend's kernels of a kind.

    Tables of different backends time different things, and differ by factors for the same kernels:
    each backend has its own constants.
    """

    def covers(of: str, kernel: str | None, _cached: bool) -> bool:  # noqa: FBT001
        return of == backend and (kernel or "").startswith(kernels)

    return _form(
        name=name,
        meaning=f"dispatch and combine by {backend}'s {', '.join(kernels)}",
        covers=covers,
        needs=("experts", "top_k"),
        constants=(*_EXCHANGE, *(_BETWEEN if far else ())),
        hypotheses=("links",),
        latency_us=exchange_us,
        features=exchange_features,
    )


COLLECTIVE_GRAPH = _form(
    name="collective_graph",
    meaning="vLLM's and SGLang's all-reduces in a CUDA graph, by the switches of their source",
    covers=lambda backend, kernel, _cached: (
        backend in ("vllm", "sglang") and (kernel in (None, WITH_NORM) or kernel.endswith("graph"))
    ),
    constants=_GRAPH,
    hypotheses=("rules",),
    latency_us=graph_us,
    features=algorithm_features,
)
COLLECTIVE_EAGER = _form(
    name="collective_eager",
    meaning="the same launched one by one",
    covers=lambda backend, kernel, _cached: (
        backend in ("vllm", "sglang") and (kernel or "").endswith("eager")
    ),
    constants=(
        *_GRAPH,
        _HOST,
        Constant("recent_host_us", "us", 30.0, 1.0, 200.0, "the same of SGLang's push and pull"),
        Constant("grace", "1", 2.0, 1.0, 6.0,
                 "how much longer either takes where the host is Grace"),
    ),
    hypotheses=("rules",),
    latency_us=eager_us,
    features=algorithm_features,
)  # fmt: skip
COLLECTIVE_NCCL = _form(
    name="collective_nccl",
    meaning="NCCL's collectives over NVLink",
    covers=lambda backend, _kernel, _cached: backend == "nccl",
    constants=_LARGE,
    hypotheses=("protocols",),
    latency_us=nccl_us,
)
COLLECTIVE_TRTLLM = _form(
    name="collective_trtllm",
    meaning="TensorRT-LLM's all-reduces",
    covers=lambda backend, kernel, _cached: (
        backend == "trtllm" and (kernel or "TRTLLM").startswith("TRTLLM")
    ),
    constants=_TRTLLM,
    hypotheses=("protocols",),
    latency_us=nccl_us,
)
COLLECTIVE_PCIE = _form(
    name="collective_pcie",
    meaning="any collective of GPUs that meet over PCIe",
    covers=lambda _backend, _kernel, _cached: False,
    constants=_OVER_PCIE,
    hypotheses=("paths",),
    latency_us=pcie_us,
    features=pcie_features,
)
"""The platform selects it, not the kernel."""
EXCHANGES = (
    _exchange("exchange_low_latency", "sglang", ("deepep_ll",), far=True),
    _exchange("exchange_normal", "sglang", ("deepep_normal",), far=True),
    _exchange(
        "exchange_low_latency_vllm", "vllm", ("deepep_ll", "deepep_v2_generation"), far=False
    ),
    _exchange("exchange_normal_vllm", "vllm", ("deepep_ht", "deepep_v2_context"), far=False),
    _exchange("exchange_low_latency_trtllm", "trtllm", ("trtllm_deepep_ll",), far=False),
    _exchange("exchange_normal_trtllm", "trtllm", ("trtllm_deepep_ht",), far=False),
)
COLLECTIVES = (
    *EXCHANGES,
    COLLECTIVE_GRAPH,
    COLLECTIVE_EAGER,
    COLLECTIVE_NCCL,
    COLLECTIVE_TRTLLM,
    COLLECTIVE_PCIE,
)
"""The forms of collectives, the most specific first."""
COLLECTIVE_FAMILIES = frozenset(family.name for family in COLLECTIVES)
"""Their names."""
SWITCHED_FAMILIES = (COLLECTIVE_GRAPH.name, COLLECTIVE_EAGER.name)
"""Families whose algorithm follows from the engines' source."""
