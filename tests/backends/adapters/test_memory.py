"""Memory: what a setting needs is known before it is allocated, and never too little."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from conftest import make_setting
from hypothesis import given, settings
from hypothesis import strategies as st
from nearfree.backends.adapters import memory
from nearfree.backends.adapters.kernel import ExecutionContext, Kernel, make_kernel
from nearfree.backends.adapters.memory import (
    bytes_needed,
    copies_needed,
    free_bytes,
    refuse_too_large,
)
from nearfree.backends.adapters.tensors import Turns
from nearfree.core.setting import Setting
from nearfree.errors import EvidenceError
from torch import Tensor

from backends.adapters.shapes import make_indexer, make_mla, make_moe, make_sdpa

WIDTHS = st.integers(32, 96)
DTYPES = st.sampled_from(["float32", "bfloat16"])
POSITIONS = st.sets(st.integers(1, 40), min_size=1, max_size=4).map(
    lambda positions: (*sorted(positions),)
)
DENSE = make_setting(backend="torch")
GATED = make_setting(backend="torch", gated=True)
GEMM = make_setting(backend="torch", module="gemm")
INT8 = make_setting(backend="torch", gated=True, weights="int8")
INT4 = make_setting(backend="torch", d_model=128, dtype="bfloat16", weights="int4")
CACHED = ("attention", "mla", "indexer")
LATENT = [make_mla(), make_mla(selected=6), make_indexer()]
ALL_SETTINGS = [DENSE, GATED, GEMM, INT8, INT4, make_moe(), make_sdpa(), *LATENT]
by_backend = pytest.mark.parametrize("setting", ALL_SETTINGS, ids=range(len(ALL_SETTINGS)))


def tensors_in(item: object) -> Iterator[Tensor]:
    """Yield every tensor that an object keeps."""
    if isinstance(item, Tensor):
        yield item
    elif isinstance(item, dict):
        yield from tensors_in(list(item.values()))
    elif isinstance(item, list | tuple):
        for part in item:
            yield from tensors_in(part)
    elif type(item).__module__.startswith("nearfree.backends.adapters") and hasattr(
        item, "__dict__"
    ):
        yield from tensors_in(vars(item))


def allocated_bytes(item: object) -> int:
    """Return the bytes of all tensors that an object keeps, memory in common counted once."""
    parts = (tensor.untyped_storage() for tensor in tensors_in(item))
    return sum({part.data_ptr(): part.nbytes() for part in parts}.values())


def turns_of(kernel: Kernel) -> Turns[Any]:
    """Return the copies of a kernel that take turns."""
    (turns,) = (value for value in vars(kernel).values() if isinstance(value, Turns))
    return turns


def stored(weights: str | None) -> st.SearchStrategy[dict[str, Any]]:
    """Return the widths of weights that can be stored in a format."""
    widths = st.sampled_from([128, 256]) if weights == "int4" else WIDTHS
    return st.fixed_dictionaries({"weights": st.just(weights), "d_model": widths, "d_ff": widths})


@st.composite
def draw_setting(draw: st.DrawFn) -> Setting:
    """Draw a setting of any module that runs in torch."""
    module = draw(st.sampled_from(["gemm", "dense_ffn", "moe_ffn", "attention", "mla", "indexer"]))
    batch, dtype = draw(st.integers(1, 3)), draw(DTYPES)
    if module in ("gemm", "dense_ffn"):
        return make_setting(
            module=module,
            backend="torch",
            batch=batch,
            dtype=dtype,
            gated=draw(st.sampled_from([None, True])) if module == "dense_ffn" else None,
            **draw(st.sampled_from([None, "int8", "int4"]).flatmap(stored)),
        )
    if module == "attention":
        kv_heads = draw(st.integers(1, 3))
        return make_sdpa(
            batch=batch,
            dtype=dtype,
            context=draw(st.integers(1, 300)),
            kv_heads=kv_heads,
            heads=kv_heads * draw(st.integers(1, 3)),
            mask=draw(st.sampled_from([None, "causal", "block"])),
        )
    if module in ("mla", "indexer"):
        make = make_mla if module == "mla" else make_indexer
        chosen = draw(st.sampled_from([None, 1, 60, 400])) if module == "mla" else None
        return make(
            batch=batch,
            dtype=dtype,
            context=draw(st.integers(60, 300)),
            heads=draw(st.integers(1, 5)),
            mask=draw(st.sampled_from([None, "causal", "block"])),
            selected=chosen,
        )
    experts = draw(st.integers(1, 8))
    return make_moe(
        backend=draw(st.sampled_from(["torch_padded", "torch_grouped"])),
        batch=batch,
        dtype=dtype,
        experts=experts,
        top_k=draw(st.integers(1, experts)),
        routing=draw(st.sampled_from(["balanced", "skewed", "power_law:1.2"])),
        block_size_m=draw(st.none() | st.integers(1, 64)),
        d_model=draw(WIDTHS),
        d_ff=draw(WIDTHS),
    )


@given(draw_setting(), POSITIONS, st.integers(0, 3), st.integers(0, 10**6))
@settings(deadline=None, max_examples=60)
def test_the_estimate_is_never_too_low(
    setting: Setting, positions: tuple[int, ...], copies: int, cache_bytes: int
) -> None:
    """A kernel keeps at most as many bytes as were asked for, and as many copies."""
    execution = ExecutionContext(copies=copies, cache_bytes=cache_bytes)
    needed = bytes_needed(setting, positions, execution)
    count = copies_needed(setting, positions, execution)
    kernel = make_kernel(setting, positions, execution)
    assert 0 < allocated_bytes(kernel) <= needed
    assert len(turns_of(kernel).copies) == count
    assert copies or kernel.cache == "cold"


@by_backend
def test_a_copy_more_needs_its_own_bytes(setting: Setting) -> None:
    """One copy more adds exactly what one copy of the constructed kernel takes."""
    one_copy, two_copies = (
        bytes_needed(setting, (1, 4), ExecutionContext(copies=copies)) for copies in (1, 2)
    )
    kernel = make_kernel(setting, (1, 4), ExecutionContext(copies=1))
    assert two_copies - one_copy == allocated_bytes(turns_of(kernel))


@by_backend
def test_shared_weights_are_needed_once(setting: Setting) -> None:
    """A second setting of a shape needs its weights no more; keys and values are its own."""
    execution = ExecutionContext(copies=2)
    before = bytes_needed(setting, (1,), execution)
    make_kernel(setting, (1,), execution)
    assert before - bytes_needed(setting, (1,), execution) == allocated_bytes(execution.shared)
    assert bool(execution.shared) == (setting.module not in CACHED)


@pytest.mark.parametrize(("first", "second"), [(GEMM, DENSE), (DENSE, GEMM), (GATED, DENSE)])
def test_weights_of_another_module_are_not_shared(first: Setting, second: Setting) -> None:
    """Of two modules of one shape each has weights of its own; a down projection is the same."""
    execution = ExecutionContext()
    make_kernel(first, (1,), execution)
    spared_bytes = bytes_needed(second, (1,), ExecutionContext()) - bytes_needed(
        second, (1,), execution
    )
    shared_bytes = allocated_bytes(execution.shared)
    make_kernel(second, (1,), execution)
    own_bytes = allocated_bytes(turns_of(make_kernel(second, (1,), ExecutionContext())))
    assert own_bytes - spared_bytes == allocated_bytes(execution.shared) - shared_bytes


@pytest.mark.parametrize(
    ("setting", "cache_kb", "copies"),
    [
        (DENSE, 0, 1), (DENSE, 64, 2), (DENSE, 65, 3), (GEMM, 64, 3), (GATED, 192, 3),
        (make_moe(d_model=128, experts=8), 288, 5), (make_sdpa(heads=8), 41, 3),
        (make_sdpa(), 44, 4),
    ],
)  # fmt: skip
def test_enough_copies_are_larger_than_the_cache(
    setting: Setting, cache_kb: int, copies: int
) -> None:
    """Where none are asked for, the other copies are as large as a small cache; 1 is the least.

    Of 8 experts a token that has 2 touches a quarter, and N = 1 reads 41 of 44 positions.
    """
    execution = ExecutionContext(copies=0, cache_bytes=cache_kb * 1024)
    assert copies_needed(setting, (1, 4), execution) == copies
    assert copies_needed(setting, (1, 4), ExecutionContext(copies=5, cache_bytes=10**9)) == 5


def test_weights_of_another_dtype_are_not_shared() -> None:
    """Weights in float32 save no memory for a setting in bfloat16."""
    execution = ExecutionContext()
    make_kernel(make_setting(backend="torch"), (1,), execution)
    in_bfloat16 = make_setting(backend="torch", dtype="bfloat16")
    assert bytes_needed(in_bfloat16, (1,), execution) == bytes_needed(
        in_bfloat16, (1,), ExecutionContext()
    )


@pytest.mark.parametrize(("first", "second"), [(GATED, INT8), (INT8, GATED)])
def test_weights_of_another_format_are_not_shared(first: Setting, second: Setting) -> None:
    """Weights stored as int8 and weights of the element type are not shared."""
    execution = ExecutionContext()
    make_kernel(first, (1,), execution)
    assert bytes_needed(second, (1,), execution) == bytes_needed(second, (1,), ExecutionContext())


def test_a_page_is_needed_whole() -> None:
    """Keys of a paged cache take whole pages: 41 keys need one page of 64, as 64 keys do."""
    execution = ExecutionContext(device="cuda")
    paged = make_sdpa(page_size=64)
    assert bytes_needed(paged, (1,), execution) == bytes_needed(
        make_sdpa(context=63), (1,), execution
    )
    assert bytes_needed(paged, (1,), execution) > bytes_needed(make_sdpa(), (1,), execution)


def test_only_a_cpu_needs_masks() -> None:
    """On a CPU each N has a causal mask of its own; a GPU's kernel and a block need none."""
    setting, positions = make_sdpa(), (1, 4, 8)
    cpu, cuda = (
        bytes_needed(setting, positions, ExecutionContext(device=name)) for name in ("cpu", "cuda")
    )
    assert cpu - cuda == (1 + 4 + 8) * (40 + 8) * 4
    assert bytes_needed(make_sdpa(mask="block"), positions, ExecutionContext()) == cuda


@by_backend
def test_a_tenth_of_the_memory_stays_free(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A setting is accepted up to nine tenths of what is free, and refused above."""
    execution = ExecutionContext()
    needed = bytes_needed(setting, (1, 4), execution)
    monkeypatch.setattr(memory, "free_bytes", lambda _: needed * 10 // 9 + 1)
    refuse_too_large(setting, (1, 4), execution)
    monkeypatch.setattr(memory, "free_bytes", lambda _: needed * 10 // 9 - 1)
    with pytest.raises(EvidenceError, match="N=4, with 1 copies needs"):
        refuse_too_large(setting, (1, 4), execution)


def test_the_refusal_names_what_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has the context or the batch, and both sizes in GB."""
    monkeypatch.setattr(memory, "free_bytes", lambda _: 2 * 10**9)
    with pytest.raises(EvidenceError, match=r"L=10000000, .* needs \d+\.\d GB, and 2\.0 GB"):
        refuse_too_large(make_sdpa(context=10**7), (1,), ExecutionContext())
    with pytest.raises(EvidenceError, match="dense_ffn at batch 100000000, N=1"):
        refuse_too_large(make_setting(batch=10**8), (1,), ExecutionContext())


def test_nothing_is_refused_where_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the free memory is unknown, a setting is accepted."""
    monkeypatch.setattr(memory, "free_bytes", lambda _: None)
    refuse_too_large(make_setting(d_model=10**9, d_ff=10**9), (1,), ExecutionContext())


def test_the_free_memory_is_real() -> None:
    """The free bytes of this machine are some of those that it has."""
    free = free_bytes("cpu")
    assert free is not None
    assert 2**20 < free <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_free_memory_of_a_gpu_is_real() -> None:
    """The free bytes of a GPU are some of those that it has."""
    free = free_bytes("cuda")
    assert free is not None
    assert 0 < free <= torch.cuda.get_device_properties(0).total_memory
