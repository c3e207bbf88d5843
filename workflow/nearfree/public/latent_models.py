"""Shapes of the models whose attention layers public tables name: the sizes of a rank's layer.

Widths are from each model's config.json in AIConfigurator's wheel
(aiconfigurator_core/model_configs/). Projections follow the classes of transformers 5.23
(DeepseekV3Attention, DeepseekV32Indexer, DeepseekV4Attention, MiniMaxM3VLAttention).
"""

from msgspec import Struct


class LatentModel(Struct, frozen=True, kw_only=True):
    """A model with one latent per position, and an indexer if it selects positions."""

    d_model: int
    query_rank: int
    latent: int = 512
    rope_dim: int = 64
    nope_dim: int = 128
    value_dim: int = 128
    selected: int | None = None
    index_heads: int | None = None
    index_dim: int = 128

    def projected(self, heads: int, *, indexed: bool) -> int:
        """Return the elements of the projections of a rank with some heads."""
        query_width = heads * (self.nope_dim + self.rope_dim)
        queries = self.query_rank * (self.d_model + query_width)
        latent = self.d_model * (self.latent + self.rope_dim)
        expansion = heads * self.latent * (self.nope_dim + self.value_dim)
        output = heads * self.value_dim * self.d_model
        return queries + latent + expansion + output + (self._indexer() if indexed else 0)

    def _indexer(self) -> int:
        index = self.index_heads or 0
        keys = self.d_model * (self.index_dim + index)
        return self.query_rank * index * self.index_dim + keys


class CompressedModel(Struct, frozen=True, kw_only=True):
    """A model like DeepSeek V4: cache entries span 4 positions, and are selected, or 128."""

    d_model: int
    query_rank: int
    selected: int
    width: int = 512
    output_rank: int = 1024
    heads_a_group: int = 8
    index_heads: int = 64
    index_dim: int = 128

    def projected(self, heads: int, *, indexed: bool) -> int:
        """Return the elements of the projections of a rank with some heads."""
        groups = -(-heads // self.heads_a_group)
        queries = self.query_rank * (self.d_model + heads * self.width)
        outputs = self.output_rank * (heads * self.width + groups * self.d_model)
        keys = self.d_model * self.width
        compressed = 2 * self.d_model * self.width * (1 + indexed)
        index = self.query_rank * self.index_heads * self.index_dim
        index += self.d_model * (self.index_heads + 4 * self.index_dim)
        return queries + outputs + keys + compressed + (index if indexed else 0)


class BlockModel(Struct, frozen=True, kw_only=True):
    """A model like MiniMax M3: grouped-query attention over blocks that an indexer selects."""

    d_model: int
    heads: int
    kv_heads: int
    head_dim: int
    selected: int
    index_heads: int
    index_dim: int

    def rank_kv_heads(self, heads: int) -> int:
        """Return the key-value heads of a rank with some query heads, at least one."""
        return max(1, self.kv_heads * heads // self.heads)

    def rank_index_heads(self, heads: int, engine: str) -> int:
        """Return the index heads of a rank with some query heads, as measured for an engine.

        vLLM and SGLang shard them like key-value heads; TensorRT-LLM was measured with all of them
        (collector/{vllm,sglang,trtllm}/collect_msa_module.py of AIConfigurator's repository).
        """
        return self.index_heads if engine == "trtllm" else self.rank_kv_heads(heads)

    def projected(self, heads: int, index_heads: int) -> int:
        """Return the elements of the projections of a rank with some heads."""
        head_width = (2 * heads + 2 * self.rank_kv_heads(heads)) * self.head_dim
        return self.d_model * (head_width + (index_heads + 1) * self.index_dim)


_V3 = LatentModel(d_model=7168, query_rank=1536)
_V32 = LatentModel(d_model=7168, query_rank=1536, selected=2048, index_heads=64)
_GLM5 = LatentModel(
    d_model=6144, query_rank=2048, nope_dim=192, value_dim=256, selected=2048, index_heads=32
)
_V4_FLASH = CompressedModel(d_model=4096, query_rank=1024, selected=512)
_V4_PRO = CompressedModel(d_model=7168, query_rank=1536, selected=1024)
_M3 = BlockModel(
    d_model=6144, heads=64, kv_heads=4, head_dim=128, selected=2048, index_heads=4, index_dim=128
)
MODELS: dict[str, LatentModel | CompressedModel | BlockModel] = {
    "deepseek-ai/DeepSeek-V3": _V3,
    "moonshotai/Kimi-K3": _V3,
    "deepseek-ai/DeepSeek-V3.2": _V32,
    **dict.fromkeys(
        ("zai-org/GLM-5", "zai-org/GLM-5-FP8", "zai-org/GLM-5.2", "zai-org/GLM-5.2-FP8",
         "nvidia/GLM-5.2-NVFP4"),
        _GLM5,
    ),
    "sgl-project/DeepSeek-V4-Flash-FP8": _V4_FLASH,
    **dict.fromkeys(("deepseek-ai/DeepSeek-V4-Pro", "sgl-project/DeepSeek-V4-Pro-FP8"), _V4_PRO),
    "MiniMaxAI/MiniMax-M3": _M3,
}  # fmt: skip
"""Shapes by the models' names in the tables; quantised editions have the model's shape."""
