"""Kernels of public tables that decode: each stands for one backend on a GPU and cache."""

import pytest
from derive.questions import LOG
from nearfree.backends.decode_kernels import DECODE_KERNELS, Decodes, decode_kernel
from nearfree.backends.records import BY_NAME
from nearfree.derive.reference.record import newest_kernels
from nearfree.sources.record import recorded_extraction


@pytest.mark.parametrize("each", DECODE_KERNELS, ids=lambda each: each.kernel)
def test_a_kernel_is_found_by_its_backend_and_by_its_name(each: Decodes) -> None:
    """On the GPUs where it was measured, and over caches of its formats alone."""
    assert each in DECODE_KERNELS
    for sm in each.where:
        for cache, plain in (("bfloat16", True), ("float16", True), ("float8", False)):
            found = {decode_kernel(name, sm, cache) for name in (each.kernel, each.backend)}
            assert (found == {each}) == (each.plain in (None, plain))
    assert decode_kernel(each.kernel, 70, "bfloat16") is None
    assert decode_kernel(each.kernel, None, "bfloat16") is None
    assert decode_kernel(None, min(each.where), "bfloat16") is None


def test_the_tiles_of_each_are_read_and_its_curves_are_on_record() -> None:
    """The log has the rules of the release that each names, and a kernel by each name."""
    for each in DECODE_KERNELS:
        rules = BY_NAME[each.backend].rules
        assert rules is not None
        assert recorded_extraction(LOG, rules.package, each.release) is not None
    known, _ = newest_kernels(LOG)
    names = {key.kernel for key in known if key.family == "attention_cached"}
    assert names == {each.kernel for each in DECODE_KERNELS}
