"""compressed-tensors: groups of matrices, each with a scheme of its own."""

from nearfree.core.precision import Dtype
from nearfree.decoders.keys import Keys
from nearfree.decoders.names import Names, read_names
from nearfree.decoders.quantised import ALIKE, Quantised, cache_dtype, choice
from nearfree.decoders.schemes import Scheme, read_scheme
from nearfree.errors import Refusals

_FORMATS = (
    "naive-quantized", "float-quantized", "int-quantized", "pack-quantized",
    "nvfp4-pack-quantized", "mxfp4-pack-quantized", "mixed-precision",
)  # fmt: skip


def compressed_tensors(keys: Keys, plain: Dtype) -> Quantised:
    """Return what `compressed-tensors` says, version 0.17.0.

    Its own `Linear` has the LM head in it and vllm 0.33.0's has not.
    """
    found, products = Refusals(), Refusals()
    kv, ignored, others = None, Names(), list[Scheme]()
    named = list[tuple[Names, Scheme]]()
    with found.collect():
        kv = cache_dtype(keys)
    with found.collect():
        ignored = read_names(keys, "ignore", "whole")
    with found.collect():
        if keys.has("format"):
            choice(keys, "format", *_FORMATS)
    for key in ("sparsity_config", "transform_config"):
        if keys.has(key) and not keys.empty(key):
            found.add(keys.wrong(key, "changes what is stored or multiplied", ALIKE))
    groups = keys.inner("config_groups")
    if not groups.names():
        found.add(keys.wrong("config_groups", "has no groups"))
    for group in map(groups.inner, groups.names()):
        stored, names = None, Names()
        with found.collect():
            stored = read_scheme(group, plain, products)
        with found.collect():
            if group.has("format"):
                choice(group, "format", *_FORMATS)
        if group.has("output_activations"):
            products.add(group.wrong("output_activations", "are not understood"))
        with found.collect():
            targets = group.list_of("targets", str)
            if not targets:
                raise group.wrong("targets", "names no matrices")
            rest = [each for each in targets if each != "Linear"]
            names = read_names(group, "targets", "whole", rest)
            if stored and "Linear" in targets:
                others.append(stored)
            if stored and rest:
                named.append((names, stored))
    if len(set(others)) > 1:
        found.add(keys.wrong("config_groups", "gives Linear two schemes", ALIKE))
    found.check()
    first = others[0] if others else None
    head = None if first else False
    return Quantised(
        kv=kv,
        others=first,
        named=tuple(named),
        ignored=ignored,
        head=head,
        refusals=tuple(products.found),
    )
