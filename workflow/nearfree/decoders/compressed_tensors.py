"""compressed-tensors: groups of matrices, each with its own scheme."""

from functools import partial

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
    """Return the quantisation of a `compressed-tensors` section, version 0.17.0.

    In that package the target `Linear` includes the LM head; in vllm 0.33.0 it does not.
    """
    refusals, products = Refusals(), Refusals()
    linear_schemes, named = list[Scheme](), list[tuple[Names, Scheme]]()
    kv = refusals.read(lambda: cache_dtype(keys), None)
    ignored = refusals.read(lambda: read_names(keys, "ignore", "whole"), Names())
    with refusals.collect():
        if keys.has("format"):
            choice(keys, "format", *_FORMATS)
    for key in ("sparsity_config", "transform_config"):
        if keys.has(key) and not keys.empty(key):
            refusals.add(keys.wrong(key, "changes what is stored or multiplied", ALIKE))
    groups = keys.inner("config_groups")
    if not groups.names():
        refusals.add(keys.wrong("config_groups", "has no groups"))
    for group in map(groups.inner, groups.names()):
        scheme = refusals.read(partial(read_scheme, group, plain, products), None)
        with refusals.collect():
            if group.has("format"):
                choice(group, "format", *_FORMATS)
        if group.has("output_activations"):
            products.add(group.wrong("output_activations", "are not understood"))
        with refusals.collect():
            targets = group.list_of("targets", str)
            if not targets:
                raise group.wrong("targets", "names no matrices")
            named_targets = [target for target in targets if target != "Linear"]
            names = read_names(group, "targets", "whole", named_targets)
            if scheme and "Linear" in targets:
                linear_schemes.append(scheme)
            if scheme and named_targets:
                named.append((names, scheme))
    if len(set(linear_schemes)) > 1:
        refusals.add(keys.wrong("config_groups", "gives Linear two schemes", ALIKE))
    refusals.check()
    first = linear_schemes[0] if linear_schemes else None
    head = None if first else False
    return Quantised(
        kv=kv,
        others=first,
        named=tuple(named),
        ignored=ignored,
        head=head,
        refusals=tuple(products.found),
    )
