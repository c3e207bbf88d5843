"""Windows of EXAONE 4's and K-EXAONE's layers."""

from collections.abc import Sequence

from nearfree.decoders.keys import Keys
from nearfree.decoders.layouts.mixers import gqa
from nearfree.decoders.layouts.pieces import Layer, by_kind, one_per_period
from nearfree.decoders.layouts.special import WINDOW


def exaone_windows(keys: Keys, layers: int) -> Sequence[str]:
    """Return the kinds of EXAONE 4's layers: by a period, or by letters for local and global.

    Without a window its class counts no layers (it divides by zero), so that no engine starts.
    Source: Exaone4Config of transformers 5.23, by which the last layer is global, and files of
    EXAONE 4.0 ("LLLG"); sglang 0.5.23, sglang/srt/models/exaone4.py:162-167, counts letters alone.
    """
    pattern, full, windowed = "sliding_window_pattern", "full_attention", "sliding_attention"
    if keys.whole_or_null("sliding_window") is None:
        raise keys.wrong("sliding_window", "is one by which its class counts no layers", _LISTED)
    if not keys.is_text(pattern):
        keys.whole(pattern)
        return one_per_period(pattern, full, windowed)(keys, layers)
    letters = keys.text(pattern)
    if not letters or set(letters) - {"L", "G"}:
        raise keys.wrong(pattern, "has other letters than L and G, or none")
    named = [windowed if letters[layer % len(letters)] == "L" else full for layer in range(layers)]
    counted = [windowed if layer % len(letters) else full for layer in range(1, layers + 1)]
    if [*named[:-1], full] != counted:
        raise keys.wrong(pattern, "is one that engines read differently", _LISTED)
    return counted


_LISTED = "Add layer_types, the kind of each layer: full_attention where it has no window"


def exaone_moe_attention(keys: Keys, layers: int) -> Layer:
    """Read K-EXAONE's attention, whose windowed layers all have the same window.

    Source: ExaoneMoeAttention of transformers 5.23; vllm 0.33.0,
    vllm/model_executor/models/exaone_moe.py:229-246, reads a window per layer if a file has them.
    """
    if keys.has("sliding_windows"):
        raise keys.wrong("sliding_windows", "gives layers windows of their own, which is not read")
    if not keys.has("layer_types"):
        keys.whole("sliding_window")  # unlike EXAONE 4's, its class takes no null
    kinds = {"sliding_attention": gqa(window=WINDOW, norm=True), "full_attention": gqa(norm=True)}
    return by_kind("layer_types", kinds, exaone_windows)(keys, layers)
