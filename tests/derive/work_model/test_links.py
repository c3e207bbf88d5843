"""Features of collectives: bytes inside a node and between nodes, links, and SMs that copy."""

from typing import Any

import numpy as np
import pytest
from nearfree.derive.work_model.family import Features
from nearfree.derive.work_model.links import collective_features

from derive.work_model.forms import EXCHANGE, REDUCE, facts_of, prepared

LOW_LATENCY = {**EXCHANGE, "backend": "sglang", "kernel": "deepep_ll", "platform": "h200"}
NORMAL = {**LOW_LATENCY, "kernel": "deepep_normal_24_sms"}
NCCL = {**REDUCE, "backend": "nccl", "kernel": "NCCL", "platform": "h100"}


def features(question: dict[str, Any]) -> Features:
    """Return the arrays of one question."""
    (part,) = prepared(question)
    return part.features


@pytest.mark.parametrize(("gpus", "nodes"), [(4, 1), (8, 1), (16, 2), (64, 8)])
@pytest.mark.parametrize("top_k", [1, 8])
def test_an_exchange_sends_each_copy_or_a_token_once_to_a_rank(
    gpus: int, nodes: int, top_k: int
) -> None:
    """Low latency sends k copies of a token; otherwise each rank and node gets a token once.

    With experts at random a rank of g has some of a token's k with 1 - (1 - 1/g)^k.
    """
    sizes = {"gpus": gpus, "top_k": top_k}
    copies, once = features(LOW_LATENCY | sizes), features(NORMAL | sizes)
    row = 8192 * 2 * copies["n"]
    local = min(gpus, 8)
    assert copies["sent"] == pytest.approx(row * top_k * (local - 1) / gpus)
    assert copies["between"] == pytest.approx(row * top_k * (gpus - local) / gpus)
    assert once["sent"] == pytest.approx(row * (local - 1) * (1 - (1 - 1 / gpus) ** top_k))
    assert once["between"] == pytest.approx(row * (nodes - 1) * (1 - (1 - 1 / nodes) ** top_k))


@pytest.mark.parametrize(
    ("kernel", "sms"),
    [("deepep_normal_24_sms", 24), ("deepep_normal_8_sms", 8), ("deepep_ll", 20)],
)
def test_a_kernel_s_name_says_how_many_sms_copy(kernel: str, sms: int) -> None:
    """Without a number in the name it is DeepEP's default."""
    assert features({**NORMAL, "kernel": kernel})["copying_sms"].item() == sms


@pytest.mark.parametrize(
    ("changes", "switched"),
    [
        ({}, 1),
        ({"gpus": 4}, 0),
        ({"dtype": "float16"}, 1),
        ({"dtype": "float32"}, 0),
        ({"operation": "reduce_scatter"}, 0),
        ({"platform": "b200"}, 1),
        ({"platform": "a100"}, 0),
    ],
)
def test_the_switch_sums_floats_of_eight_gpus_from_hopper_on(
    changes: dict[str, Any], switched: int
) -> None:
    """The switch of eight GPUs, Hopper or newer, sums 16-bit floats: 1 + 1/g of the bytes move."""
    features = collective_features(facts_of(NCCL | changes), np.ones((1, 1)))
    assert features["nvls"].item() == switched
    gpus = changes.get("gpus", 8)
    assert features["switched"] == pytest.approx(features["payload"] * (1 + 1 / gpus))


@pytest.mark.parametrize(
    ("platform", "nvlink5", "grace"),
    [("h100", 0, 0), ("h200", 0, 0), ("b200", 1, 0), ("gb200", 1, 1)],
)
def test_a_platform_says_its_links_and_its_host(platform: str, nvlink5: int, grace: int) -> None:
    """Blackwell has NVLink 5; bandwidths are in bytes per microsecond."""
    feature_values, facts = (
        features(NCCL | {"platform": platform}),
        facts_of(NCCL | {"platform": platform}),
    )
    assert (feature_values["nvlink5"].item(), feature_values["grace"].item()) == (nvlink5, grace)
    assert feature_values["link"].item() == pytest.approx(facts["link_gb_s"].item() * 1e9 / 1e6)


@pytest.mark.parametrize(
    ("operation", "steps", "exchange"),
    [("all_reduce", 14, 0), ("all_gather", 7, 0), ("reduce_scatter", 7, 0), ("all_to_all", 7, 1)],
)
def test_an_operation_has_its_steps(operation: str, steps: int, exchange: int) -> None:
    """An all-reduce goes around the ring twice; point-to-point sends have a cost of their own."""
    feature_values = features(NCCL | {"operation": operation})
    assert (feature_values["steps"].item(), feature_values["exchange"].item()) == (steps, exchange)


@pytest.mark.parametrize(
    ("changes", "flags"),
    [
        ({}, (0, 0, 0)),
        ({"platform": "rtx_pro_6000"}, (1, 0, 0)),
        ({"gpus": 2}, (1, 0, 0)),
        ({"gpus": 2, "backend": "vllm", "kernel": "vLLM_custom_graph"}, (1, 1, 0)),
        ({"gpus": 2, "backend": "vllm", "kernel": None, "api": "eager"}, (1, 1, 1)),
        ({"backend": "vllm", "kernel": "vLLM_custom_eager"}, (0, 0, 1)),
        ({"gpus": 2, "backend": "trtllm", "kernel": "TRTLLM"}, (1, 0, 0)),
        ({"gpus": 4, "platform": "l4"}, (0, 0, 0)),
    ],
)
def test_a_platform_says_which_gpus_reach_each_other_over_pcie(
    changes: dict[str, Any], flags: tuple[int, int, int]
) -> None:
    """Any two GPUs reach each other, more by the platform's facts; engines' kernels sum there."""
    feature_values = features(NCCL | {"platform": "l40s"} | changes)
    assert tuple(feature_values[name].item() for name in ("direct", "own", "eager")) == flags
