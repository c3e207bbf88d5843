"""Formats of published steps: those that a row's precision names, as engines serve them."""

import re
from typing import Any

from msgspec import structs

from nearfree.core.precision import Dtype, Product
from nearfree.decoders.attention_kinds import Latent
from nearfree.decoders.model_file import ModelFile
from nearfree.derive.predict.forecast.deployment import Deployment
from nearfree.errors import ConfigError

_BLOCK_SCALED = {
    "deepseek_v3", "deepseek_v32", "kimi_k2", "glm_moe_dsa", "minimax_m2",
    "qwen3_moe", "qwen3_next", "qwen3_5_moe_text",
}  # fmt: skip
"""Model types whose FP8 checkpoints have one scale per block of 128 x 128."""
_FORMATS_OF_WORD: dict[str, tuple[Dtype, ...]] = {
    **dict.fromkeys(("bf16", "bfloat16"), ("bfloat16",)),
    "fp8": ("float8_block", "float8"),
    **dict.fromkeys(("fp4", "nvfp4"), ("mxfp4", "nvfp4")),
    "mxfp4": ("mxfp4",),
    **dict.fromkeys(("int4", "awq-int4", "gptq-int4"), ("int4",)),
    "mxfp8": ("mxfp8",),
}
"""Weight formats that a source's word may mean; the last one where the model file has another."""
_UNPACKED = ("int4", "mxfp4")


def formats_of(precision: str, file: ModelFile) -> dict[str, Any]:
    """Return the formats by which a row's precision overrides those of the model's file.

    Raises ConfigError if the precision names no known format.
    """
    word = re.sub(r"[?\s].*", "", precision.strip().lower())
    stored = file.precision.named_formats(file.main)["weights"] if file.precision else None
    if word not in _FORMATS_OF_WORD:
        raise ConfigError(
            f"in what formats {precision!r:.60} stores and computes is not known",
            remedy=f"Write {', '.join(_FORMATS_OF_WORD)}",
        )
    if stored in _FORMATS_OF_WORD[word]:
        return {}
    if word in ("bf16", "bfloat16"):
        return {"dtype": "bfloat16"}
    weights = _FORMATS_OF_WORD[word][-1]
    if word == "fp8" and file.decoder and file.decoder.model_type in _BLOCK_SCALED:
        weights = "float8_block"
    return {"weights": weights} | ({} if weights in _UNPACKED else {"activations": weights})


def as_published(deployment: Deployment, precision: str) -> Deployment:
    """Return a deployment whose plain matrices are those of published NVFP4 checkpoints.

    Checkpoints of models with latent attention quantise only FFN and experts: see the quantisation
    files of nvidia/DeepSeek-V3.1-NVFP4, nvidia/GLM-5-NVFP4 and nvidia/Kimi-K2.6-NVFP4.
    """
    formats = deployment.precision
    latent = any(isinstance(kind, Latent) for kind in deployment.decoder.attention)
    if formats is None or not latent or "fp4" not in precision:
        return deployment
    if formats.experts.weights != "nvfp4":
        return deployment
    plain = Product(formats.plain, formats.plain)
    roles = tuple((role, plain) for role, _ in formats.roles)
    published = structs.replace(formats, attention=plain, roles=roles)
    return structs.replace(deployment, precision=published)
