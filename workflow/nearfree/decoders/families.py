"""Model types: the required keys of each, its FFN layout and its attention window.

A window is the same in every layer, or the model is refused.
"""

from collections.abc import Callable
from difflib import get_close_matches
from typing import NamedTuple

from nearfree.decoders.ffn import Ffn, all_experts, dense, ernie_moe, first_dense, qwen_moe
from nearfree.decoders.keys import Keys

_MIXED = "Give a model whose layers all have the same attention"


def unwindowed(keys: Keys, layers: int) -> int | None:  # noqa: ARG001 (one signature for all)
    """Return None, for models that look at all positions."""
    if keys.has("sliding_window"):
        raise keys.wrong("sliding_window", "is no key of this model type", "Leave it out")
    return None


def windowed(keys: Keys, layers: int) -> int | None:  # noqa: ARG001
    """Return `sliding_window`, for models where it holds wherever it is given.

    A file must say null to have none: without the key, Mistral's class has a window of 4096.
    Source: MistralConfig of transformers 5.23.
    """
    return keys.whole_or_null("sliding_window")


def switched_off(keys: Keys, layers: int) -> int | None:  # noqa: ARG001
    """Return None, for models whose window, switched on, holds for some layers or is not known."""
    if keys.flag("use_sliding_window"):
        raise keys.wrong("use_sliding_window", "is not understood for this model type", _MIXED)
    return None


def switched(keys: Keys, layers: int) -> int | None:
    """Return the window of models in which layers from `max_window_layers` on have one.

    Source: Qwen2Config and Qwen3Config of transformers 5.23.
    """
    if not keys.flag("use_sliding_window"):
        return None
    without = keys.whole("max_window_layers", least=0)
    if 0 < without < layers:
        raise keys.wrong(
            "max_window_layers", f"leaves a window to some of {layers} layers alone", _MIXED
        )
    return None if without else keys.whole("sliding_window")


def check_layer_types(keys: Keys, layers: int, window: int | None) -> None:
    """Raise ConfigError unless `layer_types`, where given, says the same of every layer."""
    kind = "sliding_attention" if window else "full_attention"
    kinds = keys.list_of("layer_types", str)
    if not kinds:
        return
    if len(kinds) != layers:
        raise keys.wrong("layer_types", f"has {len(kinds)} entries for {layers} layers")
    others = sorted(set(kinds) - {kind})
    if others:
        raise keys.wrong("layer_types", f"has {others[0]!r:.40} where {kind} is read", _MIXED)


class Family(NamedTuple):
    """The rules of a model type.

    `says_head_dim` holds where the width of a head does not follow from d_model.
    """

    ffn: Callable[[Keys, int], Ffn]
    window: Callable[[Keys, int], int | None]
    says_head_dim: bool = False


FAMILIES = {
    "llama": Family(dense, unwindowed),
    "granite": Family(dense, unwindowed),
    "olmo2": Family(dense, unwindowed),
    "ernie4_5": Family(dense, unwindowed, says_head_dim=True),
    "seed_oss": Family(dense, unwindowed, says_head_dim=True),
    "mistral": Family(dense, windowed),
    "phi3": Family(dense, windowed),
    "qwen2": Family(dense, switched),
    "qwen3": Family(dense, switched, says_head_dim=True),
    "wedlm": Family(dense, switched_off, says_head_dim=True),
    "mixtral": Family(all_experts, windowed),
    "olmoe": Family(all_experts, unwindowed),
    "granitemoe": Family(all_experts, unwindowed),
    "qwen2_moe": Family(qwen_moe, switched_off),
    "qwen3_moe": Family(qwen_moe, switched_off, says_head_dim=True),
    "bailing_moe": Family(first_dense, switched_off),
    "bailing_moe_v2": Family(first_dense, switched_off),
    "llada2_moe": Family(first_dense, switched_off),
    "glm4_moe": Family(first_dense, unwindowed),
    "ernie4_5_moe": Family(ernie_moe, unwindowed),
}
"""By `model_type`. All have gated FFNs and grouped-query attention in every layer.
Source: configuration and modeling files of transformers 5.23; inclusionAI/Ling (bailing_moe),
inclusionAI/Ling-V2 (its second version, whose files say either model type), inclusionAI/dFactory
(llada2_moe); Tencent/WeDLM (wedlm, of Qwen3's shape)."""


def family(keys: Keys) -> Family:
    """Return the rules of a file's model type; ConfigError names the nearest if it is not read."""
    model_type = keys.text("model_type")
    if model_type not in FAMILIES:
        near = get_close_matches(model_type[:80], FAMILIES, n=3)
        known = (
            f"Nearest are {', '.join(near)}" if near else f"Read are {', '.join(sorted(FAMILIES))}"
        )
        raise keys.wrong("model_type", "is not read", f"{known}; others may work differently")
    return FAMILIES[model_type]
