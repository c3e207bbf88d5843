"""OpenVINO's properties: those that a model is compiled with, and those that are recorded of it.

Commands that measure nothing read them, too, so this module loads no library.
"""

from typing import Any

REPORTED_PROPERTIES = (
    *("INFERENCE_PRECISION_HINT", "KEY_CACHE_PRECISION", "VALUE_CACHE_PRECISION"),
    *("DYNAMIC_QUANTIZATION_GROUP_SIZE", "INFERENCE_NUM_THREADS", "NUM_STREAMS"),
    *("ENABLE_CPU_PINNING", "ENABLE_HYPER_THREADING", "RUNTIME_REQUIREMENTS"),
)
"""Properties of a compiled model that describe how its forward runs."""


def properties(threads: int, kv_dtype: str | None = None) -> dict[str, Any]:
    """Return the properties to compile a model with; others keep the release's defaults.

    Parameters
    ----------
    kv_dtype
        `float32` for a cache in it, for which OpenVINO has to compute in it, too; None for the
        release's own choice, which depends on the CPU.
    """
    precise = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
    return {
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        **(precise if kv_dtype == "float32" else {}),
    }
