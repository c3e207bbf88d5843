"""The quantisation of a checkpoint, and readers that several methods share."""

from msgspec import Struct

from nearfree.core.precision import Dtype
from nearfree.decoders.keys import Keys
from nearfree.decoders.names import Names
from nearfree.decoders.stored.schemes import Scheme
from nearfree.errors import Refusal


class Quantised(Struct, frozen=True, kw_only=True):
    """The quantisation of a checkpoint's matrices.

    `named` holds the schemes of matrices by name, `ignored` the unquantised matrices, and `others`
    the scheme of all others. `routed` is the scheme of routed experts if it differs from `others`.
    `head` and `experts` say whether the LM head and the routed experts are among all others, None
    if engines differ on it. `kv` is the dtype of the cache, None if the method does not give it.
    `static` says whether scales of activations are stored, None if that is not known. `method` is
    the `quant_method`. `modelopt_part` is the part of the quantisation that ModelOpt's own file
    describes, if that is only a part. `refusals` say why products are not known, although the
    storage of weights is.
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
    modelopt_part: "Quantised | None" = None
    refusals: tuple[Refusal, ...] = ()


def choice(keys: Keys, key: str, *known: str) -> str:
    """Return the string under a key, which must be one of the `known` ones."""
    if keys.text(key) not in known:
        raise keys.wrong(key, f"is none of {', '.join(known)}")
    return keys.text(key)


ALIKE = "Give a model whose matrices are all quantised in the same way"
"""The remedy where matrices have different quantisations that are not read."""

_CACHES: dict[tuple[str, int], Dtype] = {
    ("float", 8): "float8",
    ("int", 8): "int8",
    ("float", 4): "nvfp4",
}
_CACHE_ALGOS: dict[str, Dtype | None] = {
    "FP8": "float8", "INT8": "int8", "NVFP4": "nvfp4", "NONE": None, "": None,
}  # fmt: skip


def cache_dtype(keys: Keys) -> Dtype | None:
    """Return the dtype of the cache, from an algorithm's name or from compressed-tensors' type."""
    for key in ("kv_cache_quant_algo", "kv_cache_scheme"):
        if not keys.has(key):
            continue
        if keys.is_text(key):
            algo = keys.text(key).upper()
            if algo not in _CACHE_ALGOS:
                raise keys.wrong(key, f"is none of {', '.join(filter(None, _CACHE_ALGOS))}")
            return _CACHE_ALGOS[algo]
        scheme = keys.inner(key)
        kind, bits = scheme.text("type"), scheme.whole("num_bits")
        if (kind, bits) not in _CACHES:
            raise scheme.wrong("num_bits", f"of type {kind!r:.40} is no format of a cache")
        return _CACHES[kind, bits]
    return None
