"""Collectives between GPUs: all-reduce, gathers, and the exchange of tokens between experts.

What a collective sends says how long it takes at least; its kernels say what it costs besides.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

from nearfree.core.modules.kind import ModuleKind
from nearfree.core.modules.moe_ffn import first_experts
from nearfree.core.setting import Setting
from nearfree.core.setting_check import ROUTED_OPERATIONS
from nearfree.core.work import ExecutedWork, element_bytes
from nearfree.errors import EvidenceError

RING = "ring"
"""Rank to rank around a ring, each piece once: NCCL's, and what any algorithm sends at least."""
ONE_SHOT = "one-shot"
"""Every rank reads the whole buffer of every other one."""
TWO_SHOT = "two-shot"
"""Every rank reduces one piece of all buffers, then reads the others' pieces."""
MULTICAST = "multicast"
"""The switch reduces and multicasts: a rank sends its buffer once and one piece of the sum."""
SCALED_FROM = 2
"""Bytes of an element below which rows are sent with a scale."""
SCALE_BYTES = 4 / 128
"""Of rows sent in 8 bits: a float32 scale for 128 elements (DeepEP, csrc/kernels/internode_ll.cu,
kNumPerChannels)."""


def payload_bytes(setting: Setting, n: int) -> float:
    """Return the bytes of the rows that one rank brings to a collective, of b N positions.

    Of an all-gather they are all gathered rows, of a reduce-scatter all rows that are reduced: what
    one rank has after the one and before the other. Of a dispatch or combine they are k copies of
    each of the rank's own b N rows.
    """
    size = element_bytes(setting)
    copies = 1
    if setting.operation in ROUTED_OPERATIONS:
        copies = setting.top_k or 1
        size += SCALE_BYTES if size < SCALED_FROM else 0
    return setting.batch * n * copies * (setting.d_model or 0) * size


def sent_share(operation: str, gpus: int, algorithm: str = RING) -> float:
    """Return the bytes that a rank sends, as a multiple of its payload.

    With g GPUs: an all-reduce 2 (g - 1) / g by a ring or in two shots, g - 1 in one shot, and
    1 + 1 / g by multicast; a send 1; every other one (g - 1) / g.

    Source: NCCL, src/graph/tuning.cc (`nsteps` of each collective); vLLM 0.22.0,
    csrc/custom_all_reduce.cuh, cross_device_reduce_1stage and _2stage.
    """
    if operation == "send":
        return 1.0
    once = (gpus - 1) / gpus
    if operation != "all_reduce":
        return once
    return {ONE_SHOT: gpus - 1.0, MULTICAST: 1 + 1 / gpus}.get(algorithm, 2 * once)


def busiest(loads: Sequence[float], ranks: int) -> float:
    """Return the pairs of the rank that gets most of them, over those of the mean one.

    Parameters
    ----------
    loads
        Pairs, or shares of them, by expert, which ranks hold in their order (`first_experts`).
    ranks
        The ranks that the experts are spread over.
    """
    total = math.fsum(loads)
    ends = (*first_experts(len(loads), ranks), len(loads))
    most = max(math.fsum(loads[first:end]) for first, end in pairwise(ends))
    return most * ranks / total if most * ranks > total else 1.0


def busiest_of(setting: Setting) -> float:
    """Return the load of the busiest rank over the mean one's, from the setting's own routing.

    Balanced routing loads all experts alike, skewed routing sends every token to the first k. A
    setting that says none, as the public tables' do, loads all ranks alike: DeepEP's tests draw
    experts at random from as many as ranks hold evenly (tests/test_internode.py, num_experts).

    Raises
    ------
    EvidenceError
        The routing says no loads; they are asked of the sampler or of a file of loads.
    """
    experts, top_k, ranks = setting.experts or 0, setting.top_k or 0, setting.gpus or 1
    alike = setting.routing == "balanced"
    if setting.operation not in ROUTED_OPERATIONS or setting.routing is None:
        return 1.0
    if alike or setting.routing == "skewed":
        return busiest([float(alike or expert < top_k) for expert in range(experts)], ranks)
    raise EvidenceError(
        f"{setting.routing} routing says no load of a rank by itself",
        remedy="Give the experts' loads, or balanced or skewed routing",
    )


def sent_bytes(setting: Setting, n: int) -> float:
    """Return the bytes that the busiest rank sends or receives in a collective of b N positions.

    An all-reduce goes around a ring. A rank that gets more pairs than the mean one receives more in
    a dispatch, and sends more in a combine; that rank's link is what all others wait for.
    """
    share = sent_share(setting.operation or "", setting.gpus or 1)
    return payload_bytes(setting, n) * share * busiest_of(setting)


def collective_work(
    setting: Setting, n: int, basis: str, *, rows: int | None = None, group: int = 1
) -> ExecutedWork:
    """Return the work of a collective: no product, and the bytes that its busiest rank sends."""
    del rows, group  # nothing is padded
    sent = math.ceil(sent_bytes(setting, n))
    return ExecutedWork(flop_logical=0, flop_executed=0, bytes_compulsory=sent, basis=basis)


COLLECTIVE = ModuleKind(name="collective", title="collective", own="gpus", work=collective_work)
"""It has no law of the paper, which speaks of one GPU: a collective computes nothing, so no balance
of compute and memory bounds it."""
