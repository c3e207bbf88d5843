"""Collectives between GPUs: all-reduce, gathers, and the exchange of tokens between experts.

The bytes that a collective sends bound its time from below; its kernels add overhead.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

from nearfree.core.modules.kind import ModuleKind
from nearfree.core.modules.moe_ffn import first_experts
from nearfree.core.setting import Setting
from nearfree.core.setting_check import ROUTED_OPERATIONS
from nearfree.core.work import ExecutedWork, element_bytes, unpadded_work
from nearfree.errors import EvidenceError

WITH_NORM = "with_norm"
"""The call (`api`) of an engine's all-reduce that is fused with the norm after it."""
RING = "ring"
"""From rank to rank around a ring, each piece once: NCCL's algorithm, with the fewest bytes."""
ONE_SHOT = "one-shot"
"""Every rank reads the whole buffers of all others."""
TWO_SHOT = "two-shot"
"""Every rank reduces one piece of all buffers, then reads the other ranks' pieces."""
MULTICAST = "multicast"
"""The switch reduces and multicasts: a rank sends its buffer once, and one piece of the sum."""
SCALED_FROM = 2
"""Elements of fewer bytes than this are sent with scales."""
SCALE_BYTES = 4 / 128
"""Bytes of scale per 8-bit element: a float32 per 128 elements (DeepEP,
csrc/kernels/internode_ll.cu, kNumPerChannels)."""


def payload_bytes(setting: Setting, n: int) -> float:
    """Return the bytes of one rank's rows in a collective over b N positions.

    For an all-gather these are all gathered rows, for a reduce-scatter all rows to be reduced: the
    larger of a rank's two buffers. For a dispatch or combine they are k copies of each of the
    rank's own b N rows.
    """
    size = element_bytes(setting)
    copies = 1
    if setting.operation in ROUTED_OPERATIONS:
        copies = setting.top_k or 1
        size += SCALE_BYTES if size < SCALED_FROM else 0
    return setting.batch * n * copies * (setting.d_model or 0) * size


def sent_ratio(operation: str, gpus: int, algorithm: str = RING) -> float:
    """Return the bytes that a rank sends, as a multiple of its payload.

    With g GPUs: an all-reduce sends 2 (g - 1) / g by ring or two-shot, g - 1 by one-shot and
    1 + 1 / g by multicast; a send 1; every other operation (g - 1) / g.

    Source: NCCL, src/graph/tuning.cc (`nsteps` of each collective); vLLM 0.22.0,
    csrc/custom_all_reduce.cuh, cross_device_reduce_1stage and _2stage.
    """
    if operation == "send":
        return 1.0
    ring_share = (gpus - 1) / gpus
    if operation != "all_reduce":
        return ring_share
    return {ONE_SHOT: gpus - 1.0, MULTICAST: 1 + 1 / gpus}.get(algorithm, 2 * ring_share)


def load_imbalance(loads: Sequence[float], ranks: int) -> float:
    """Return the load imbalance: the busiest rank's pairs over the mean of all ranks, at least 1.

    Parameters
    ----------
    loads
        Pairs, or shares of pairs, by expert; ranks hold experts in order (`first_experts`).
    ranks
        Number of ranks that the experts are distributed over.
    """
    total_load = math.fsum(loads)
    ends = (*first_experts(len(loads), ranks), len(loads))
    busiest_load = max(math.fsum(loads[first:end]) for first, end in pairwise(ends))
    return busiest_load * ranks / total_load if busiest_load * ranks > total_load else 1.0


def setting_imbalance(setting: Setting) -> float:
    """Return the load imbalance of the ranks under the setting's own routing.

    Balanced routing loads all experts equally; skewed routing sends every token to the first k. A
    setting without routing, as in the public tables, loads all ranks equally: DeepEP's tests draw
    experts at random, and their number is a multiple of the ranks (tests/test_internode.py,
    num_experts).

    Raises
    ------
    EvidenceError
        The routing does not determine the loads; they come from sampling or from a file of loads.
    """
    experts, top_k, ranks = setting.experts or 0, setting.top_k or 0, setting.gpus or 1
    balanced = setting.routing == "balanced"
    if setting.operation not in ROUTED_OPERATIONS or setting.routing is None:
        return 1.0
    if balanced or setting.routing == "skewed":
        return load_imbalance(
            [float(balanced or expert < top_k) for expert in range(experts)], ranks
        )
    raise EvidenceError(
        f"{setting.routing} routing does not determine the load of a rank by itself",
        remedy="Give the experts' loads, or balanced or skewed routing",
    )


def sent_bytes(setting: Setting, n: int) -> float:
    """Return the bytes that the busiest rank sends or receives in a collective of b N positions.

    An all-reduce goes around a ring. A rank with more pairs than the mean receives more in a
    dispatch and sends more in a combine, and all others wait for its link.
    """
    share = sent_ratio(setting.operation or "", setting.gpus or 1)
    return payload_bytes(setting, n) * share * setting_imbalance(setting)


def collective_work(setting: Setting, n: int, basis: str) -> ExecutedWork:
    """Return the work of a collective: no FLOPs, and the bytes that its busiest rank sends."""
    return unpadded_work(0, sent_bytes(setting, n), basis)


COLLECTIVE = ModuleKind(
    name="collective",
    title="collective",
    own="gpus",
    work=collective_work,
    knobs=(
        "degrees of parallelism (among how many GPUs, and what each of them sends)",
        "links between GPUs",
        "engine and its version (one shot, two shots, or NCCL)",
        "batch (b N rows are sent)",
    ),
)
"""The paper has no law for it: its laws are for one GPU, and a collective computes nothing, so the
balance of compute and memory does not bound it."""
