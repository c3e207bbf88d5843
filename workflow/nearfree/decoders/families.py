"""The model types that are read: what the file of each must say, and what follows from it."""

from collections.abc import Callable
from difflib import get_close_matches
from typing import NamedTuple

from nearfree.decoders.ffn import Ffn, all_experts, dense, ernie_moe, first_dense, qwen_moe
from nearfree.decoders.keys import Keys
from nearfree.decoders.window import switched, switched_off, unwindowed, windowed


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
    given = keys.text("model_type")
    if given not in FAMILIES:
        near = get_close_matches(given[:80], FAMILIES, n=3)
        known = (
            f"Nearest are {', '.join(near)}" if near else f"Read are {', '.join(sorted(FAMILIES))}"
        )
        raise keys.wrong("model_type", "is not read", f"{known}; others may work differently")
    return FAMILIES[given]
