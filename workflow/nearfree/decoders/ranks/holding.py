"""The share of a model's weights and cache that each rank of a deployment holds.

It is also computed for models whose forward is not predicted, and for deployments that no engine
supports: sizes that do not divide are rounded up to the largest shard.
"""

from typing import Literal

from msgspec import Struct

from nearfree.core.modules.moe_ffn import local_experts
from nearfree.core.parallel import Parallel
from nearfree.decoders.layouts.pieces import OF_ATTENTION, Kind
from nearfree.decoders.ranks.engines import Engine

Held = Literal["cut", "keys", "fused", "experts", "rows", "whole"]
"""How ranks hold a matrix: `cut` evenly; `keys` and values by key heads; these `fused` with the
query; `experts` whole or cut; `rows` of a vocabulary; or `whole` on each rank (replicated)."""

_KEYS = ("k_proj", "v_proj")
_FUSED = ("query_key_value", "qkv_proj", "q_k_v_proj", "c_attn", "W_pack", "Wqkv")
_WHOLE = (
    "q_a_proj", "kv_a_proj_with_mqa", "weights_proj", "wk", "wkv", "wq_a", "wgate", "ape",
    "index_k_proj", "shared_expert_gate", "o_proj.bias", "dense.bias", "f_a_proj",
    "g_a_proj", "fc1_latent_proj", "fc2_latent_proj", "routed_expert_down_proj",
    "routed_expert_up_proj",
)  # fmt: skip
"""Replicated matrices (ReplicatedLinear): latents and narrow ones; and biases added after the sum
over ranks.
Source: vllm 0.33.0, vllm/model_executor/models/deepseek_v2.py (latents and the indexer),
qwen2_moe.py:148-154 (shared_expert_gate), nemotron_h.py:196-212 (latents of experts),
layers/linear.py:1799-1827 (bias), vllm/models/kimi_k3/nvidia/model.py (latents of its experts);
sglang 0.5.23, sglang/srt/models/kimi_linear.py:299-328 (narrow rows of gates)."""
_KINDS: dict[Kind, Held] = {
    "experts": "experts", "embedding": "rows", "lm_head": "rows", "router": "whole",
    "norm": "whole", "other": "whole",
}  # fmt: skip


def held(name: str, kind: Kind, *, latent_queries: bool = False) -> Held:
    """Return how ranks hold the weight tensors of a name, given as in `Matrix`.

    `latent_queries` says that the model makes queries from a latent, which each rank makes whole.
    """
    leaf = name.removesuffix(".bias").rpartition(".")[2]
    if kind in _KINDS:
        return _KINDS[kind]
    is_added_bias = f"{leaf}.bias" in _WHOLE and name.endswith(".bias")
    if latent_queries and leaf == "q_proj":
        return "whole"
    if is_added_bias or leaf in _WHOLE or ".indexer." in name:
        return "whole"
    if kind == OF_ATTENTION and leaf in (*_KEYS, *_FUSED):
        return "keys" if leaf in _KEYS else "fused"
    return "cut"


def head_share(heads: int, tp: int) -> float:
    """Return the share of heads on the rank with most of them; each rank has at least one."""
    return -(-heads // tp) / heads


class Heads(Struct, frozen=True):
    """Numbers of query heads, and of key heads in the layers that cache most (1 for a latent)."""

    queries: int = 1
    cached: int = 1

    def fused_share(self, tp: int) -> float:
        """Return the share of a fused query, key and value matrix that a rank holds."""
        part = -(-self.queries // tp) + 2 * -(-self.cached // tp)
        return part / (self.queries + 2 * self.cached)


class Holding(Struct, frozen=True):
    """How the ranks of a deployment hold the weights of a model with the given sizes."""

    parallel: Parallel
    engine: Engine
    heads: Heads
    experts: int = 1
    vocabulary: int = 1
    model_type: str = ""

    def share(self, how: Held, kind: Kind) -> float:
        """Return the share of some weights on the rank that holds most of them."""
        tp, parallel = self.parallel.tp, self.parallel
        if kind == "shared_experts" and self.engine.uses_sequence_parallel(
            parallel, self.model_type
        ):
            return 1.0
        by_engine = kind in ("ffn", "shared_experts", "lm_head")
        ranks = self.engine.ranks(parallel) if by_engine else tp
        if how == "experts":
            expert_share = local_experts(self.experts, parallel.ep) / self.experts
            return expert_share / parallel.moe_tp
        if how == "rows" and ranks > 1:
            return self.engine.padded(self.vocabulary, ranks) / self.vocabulary / ranks
        if how == "keys":
            return head_share(self.heads.cached, tp)
        if how == "fused":
            return self.heads.fused_share(tp)
        return 1.0 if how == "whole" else 1.0 / ranks

    def copies(self, how: Held, kind: Kind) -> float:
        """Return the number of copies of some weights on all ranks of a stage together."""
        if how == "experts":
            return 1.0
        return self.share(how, kind) * self.parallel.ranks

    def stages(self, layers: int) -> tuple[range, ...]:
        """Return the layers of each pipeline stage."""
        layers_by_stage, first = list[range](), 0
        for count in self.engine.layers(layers, self.parallel.pp):
            layers_by_stage.append(range(first, first + count))
            first += count
        return tuple(layers_by_stage)
