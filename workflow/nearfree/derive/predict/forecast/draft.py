"""What a model's own draft layer takes beside a step: multi-token prediction, layer by layer.

A draft of K tokens runs the layer K times: first on all b (K + 1) rows of the step that is
verified, then K - 1 times on b rows. Each time is a layer of the model's own, experts included, and
the LM head. With K = 0 the layer still runs once, for its cache. Source: vllm 0.20.2,
vllm/v1/spec_decode/llm_base_proposer.py (rows of the first forward); vllm 0.33.0, the same file,
line 619 (K = 0); sglang 0.5.9, sglang/srt/speculative/eagle_worker_v2.py (draft extend).
"""

from collections.abc import Mapping

import numpy as np

from nearfree.decoders.collectives import LOGITS
from nearfree.decoders.modules import HEAD
from nearfree.derive.predict.forecast.deployment import Deployment
from nearfree.derive.work_model.family import Array, Places


def own_draft_us(
    deployment: Deployment, roles: Mapping[int, str], latency_us: Array, grid: Places
) -> Array:
    """Return what a draft of N - 1 tokens takes beside a step of N positions, [grid].

    Parameters
    ----------
    roles, latency_us
        The modules by place, and what all their layers take, [places, grid].
    grid
        N, rising from 1.
    """
    counts = {use.role: use.count for use in deployment.uses()}
    decoder = deployment.decoder
    layers = {decoder.layers, decoder.moe_layers or decoder.layers}
    once = np.zeros(len(grid))
    for place, role in roles.items():
        if counts.get(role) in layers:
            once += latency_us[place] / counts[role]
        elif role in (HEAD, LOGITS):
            once += latency_us[place]
    drafts = grid.astype(np.float64) - 1.0
    return np.asarray(once + np.maximum(drafts - 1.0, 0.0) * once[0])
