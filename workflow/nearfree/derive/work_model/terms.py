"""What stops a prediction between two N, in words: a step of a rule, or what grows without one."""

import numpy as np

from nearfree.derive.work_model.family import Array, Places
from nearfree.derive.work_model.prepare import Prepared

_PLAIN = {
    "gemm": "compute of padded rows against the weights' traffic",
    "moe_triton": "padded expert blocks and traffic between L2 and SMs",
    "moe_library": "padded expert blocks and traffic between L2 and SMs",
    "attention_prefill": "waves of query tiles",
    "attention_cached": "padded query tiles over the cache",
}
_STEPS = {
    "block_m": "BLOCK_SIZE_M",
    "tile_rows": "query tile",
    "rows_per_position": "query heads packed in a tile",
}


def stop_terms(part: Prepared, rows: Places, last: Places, after: Places) -> list[str]:
    """Return what stops some rows between two places of their grids.

    Parameters
    ----------
    part
        Questions of one family.
    rows
        Which of them.
    last, after
        The last place within the tolerance, and the one after it.
    """
    sizes = {word: part.features[name] for name, word in _STEPS.items() if name in part.features}
    if part.family.name.startswith("moe"):
        sizes = {"active experts": _active_experts(part), **sizes}
    terms = [_PLAIN[part.family.name]] * len(rows)
    for word, each in reversed(sizes.items()):
        before, then = each[rows, last].astype(int), each[rows, after].astype(int)
        terms = [
            term if a == b else f"{word} {a} -> {b}"
            for term, a, b in zip(terms, before, then, strict=True)
        ]
    return terms


def _active_experts(part: Prepared) -> Array:
    """Return how many experts have a token, [rows, grid]; each more has weights to be read."""
    features = part.features
    pairs = features["tokens"] * features["top_k"]
    balanced = np.minimum(features["experts"], pairs)
    return np.asarray(np.where(features["skewed"] > 0, features["top_k"], balanced))
