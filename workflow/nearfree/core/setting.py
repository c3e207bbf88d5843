"""Settings: one module under one fixed configuration, each of its fields declared once."""

import hashlib
from typing import Annotated, Literal

from msgspec import Meta, Struct, json

from nearfree.core.protocols import Positive
from nearfree.errors import ConfigError

NAME = r"[a-z0-9][a-z0-9_]{0,63}"
Name = Annotated[str, Meta(pattern=f"^{NAME}$")]
"""A scope, stream, study or platform: it becomes a folder, so nothing else may stand in it."""
Dtype = Literal["auto", "bfloat16", "float16", "float32", "float8"]
"""`auto` stands in plans alone: bfloat16 where the machine has it, else float32."""
Module = Literal["gemm", "dense_ffn", "moe_ffn", "attention", "model"]
"""`gemm` is one matrix product, [rows, d_model] by [d_model, d_ff]."""
Controlled = Literal["balanced", "skewed"]
"""How an MoE study spreads tokens over experts (paper, app. C.3)."""
ModelRouting = Literal["balanced", "skewed", "router"]
"""The same in a model, whose own router may decide instead."""
Routing = Literal["balanced", "skewed", "router", "power_law"]
"""`power_law` is imported, not run."""
Mask = Literal["causal", "block"]
"""Which keys a new position sees: `causal` those up to its own, `block` all L + N."""

_REQUIRED: dict[str, tuple[str, ...]] = {
    "gemm": ("d_model", "d_ff"),
    "dense_ffn": ("d_model", "d_ff"),
    "moe_ffn": ("d_model", "d_ff", "experts", "top_k", "routing"),
    "attention": ("context", "heads", "kv_heads", "head_dim"),
    "model": (),
}


class Setting(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, gc=False
):
    """One module under one fixed configuration: everything but the number of positions N.

    Shapes use the paper's letters: `batch` b, `context` L, `experts` E, `top_k` k; widths are in
    elements. A field that the module does not have is None.

    `block_size_m` fixes the rows of a padded expert block where the backend lets one choose;
    `api` names the call of a backend that has several, `page_size` the positions of a page of its
    KV cache; `cuda_graph` says that the backend plans for a CUDA graph, which changes its tiles.
    `gated` says whether an expert or FFN has three matrices (gate, up, down) or two; None where it
    is the kernels' own form: three for experts, two for the paper's Dense FFN. `mask` is causal
    where an attention setting does not say it.

    A whole model's `backend` runs its attention and `moe` its routed experts; `model` is its name,
    `model_digest` tells two models of one name apart.
    """

    module: Module
    backend: str
    dtype: Dtype
    batch: Positive = 1
    context: Annotated[int, Meta(ge=0)] | None = None
    d_model: Positive | None = None
    d_ff: Positive | None = None
    experts: Positive | None = None
    top_k: Positive | None = None
    routing: Routing | None = None
    heads: Positive | None = None
    kv_heads: Positive | None = None
    head_dim: Positive | None = None
    block_size_m: Positive | None = None
    api: Name | None = None
    page_size: Positive | None = None
    cuda_graph: bool = False
    gated: bool | None = None
    mask: Mask | None = None
    model: Name | None = None
    model_digest: Annotated[str, Meta(pattern="^[0-9a-f]{12}$")] | None = None
    moe: Name | None = None


def check_setting(setting: Setting) -> None:
    """Raise ConfigError, naming the field, unless a setting is one that can exist."""
    missing = [name for name in _REQUIRED[setting.module] if getattr(setting, name) is None]
    if missing:
        raise ConfigError(
            f"a {setting.module} setting lacks {', '.join(missing)}",
            remedy="Give each of them in the study's shape",
        )
    if (setting.top_k or 0) > (setting.experts or setting.top_k or 0):
        raise ConfigError(
            f"top_k {setting.top_k} is larger than experts {setting.experts}",
            remedy="Choose at most as many experts a token as there are",
        )
    if (setting.heads or 0) % (setting.kv_heads or 1):
        raise ConfigError(
            f"heads {setting.heads} is no multiple of kv_heads {setting.kv_heads}",
            remedy="Let each key and value head serve the same number of query heads",
        )


def setting_key(setting: Setting) -> str:
    """Return a short stable name of a setting, the same on every machine (12 hex digits)."""
    return hashlib.sha256(json.encode(setting, order="deterministic")).hexdigest()[:12]
