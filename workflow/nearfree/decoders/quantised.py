"""What a method of quantisation says of a checkpoint's matrices, and values that several share."""

from msgspec import Struct

from nearfree.core.precision import Dtype
from nearfree.decoders.keys import Keys
from nearfree.decoders.names import Names
from nearfree.decoders.schemes import Scheme
from nearfree.errors import Refusal


class Quantised(Struct, frozen=True, kw_only=True):
    """What a method says: the scheme of matrices by name, of all others, and what is left out.

    `routed` is the scheme of routed experts where it is not that of all others. `head` and
    `experts` say whether the LM head and the routed experts are among all others, None if engines
    differ on it. `static` says whether scales of what enters products are stored, None where it is
    not known, and `method` is the `quant_method`. `beside` is what ModelOpt's own file says of it,
    where that speaks of a part alone. `refusals` say what is not known of the products: the weights
    are as is said here.
    """

    kv: Dtype | None = None
    others: Scheme | None = None
    routed: Scheme | None = None
    named: tuple[tuple[Names, Scheme], ...] = ()
    ignored: Names = Names()
    head: bool | None = False
    experts: bool | None = True
    static: bool | None = None
    method: str = ""
    beside: "Quantised | None" = None
    refusals: tuple[Refusal, ...] = ()


def choice(keys: Keys, key: str, *known: str) -> str:
    """Return a text out of those that are known."""
    if keys.text(key) not in known:
        raise keys.wrong(key, f"is none of {', '.join(known)}")
    return keys.text(key)


ALIKE = "Give a model whose matrices all are quantised alike"
"""What to do where one method says several things."""

_CACHES: dict[tuple[str, int], Dtype] = {
    ("float", 8): "float8",
    ("int", 8): "int8",
    ("float", 4): "nvfp4",
}
_CACHE_ALGOS: dict[str, Dtype | None] = {
    "FP8": "float8", "INT8": "int8", "NVFP4": "nvfp4", "NONE": None, "": None,
}  # fmt: skip


def cache_dtype(keys: Keys) -> Dtype | None:
    """Return what the cache holds: an algorithm's name, or numbers as compressed-tensors says."""
    for key in ("kv_cache_quant_algo", "kv_cache_scheme"):
        if not keys.has(key):
            continue
        if keys.is_text(key):
            algo = keys.text(key).upper()
            if algo not in _CACHE_ALGOS:
                raise keys.wrong(key, f"is none of {', '.join(filter(None, _CACHE_ALGOS))}")
            return _CACHE_ALGOS[algo]
        inner = keys.inner(key)
        kind, bits = inner.text("type"), inner.whole("num_bits")
        if (kind, bits) not in _CACHES:
            raise inner.wrong("num_bits", f"of type {kind!r:.40} is none that caches hold")
        return _CACHES[kind, bits]
    return None
