"""An engine's all-reduce algorithm at the sizes where its source switches."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nearfree.core.modules.collective import WITH_NORM
from nearfree.derive.work_model.all_reduce import Ranks, algorithm_of, rounds_of

KIB, MIB = 1024, 1024**2
OWN = "custom_graph"
"""The kernel that a public table names: the engine's own."""


@pytest.mark.parametrize(
    ("engine", "sm", "gpus", "size", "algorithms"),
    [
        (("vllm", "0.14.0"), 90, 8, 256 * KIB - 16, "one_shot"),
        (("vllm", "0.14.0"), 90, 8, 256 * KIB, "two_shot"),
        (("vllm", "0.14.0"), 90, 4, 512 * KIB, "two_shot"),
        (("vllm", "0.14.0"), 90, 2, 4 * MIB, "one_shot"),
        (("vllm", "0.14.0"), 90, 8, 8 * MIB, "nccl"),
        (("vllm", "0.24.0"), 90, 8, 256 * KIB, "multicast"),
        (("vllm", "0.24.0"), 90, 4, 8 * MIB - 16, "two_shot"),
        (("vllm", "0.24.0"), 90, 4, 8 * MIB, "multicast"),
        (("vllm", "0.24.0"), 100, 4, 2 * MIB, "torch_two_shot"),
        (("vllm", "0.24.0"), 100, 8, MIB, "multicast"),
        (("vllm", None), 90, 8, 65 * MIB, "nccl"),
        (("vllm", "0.24.0"), 80, 8, 4 * MIB, "two_shot"),
        (("vllm", "0.24.0"), 90, 16, 16, "nccl"),
        (("sglang", "0.5.9"), 90, 8, 8 * MIB, "two_shot"),
        (("sglang", "0.5.14"), 90, 8, 160 * KIB, "push"),
        (("sglang", "0.5.14"), 90, 8, 160 * KIB + 16, "pull"),
        (("vllm", None), 103, 4, 4 * MIB - 16, "two_shot"),
        (("vllm", None), 103, 4, 4 * MIB, "torch_two_shot"),
        (("vllm", None), 103, 4, 32 * MIB, "torch_two_shot"),
        (("vllm", None), 103, 4, 32 * MIB + 16, "nccl"),
        (("vllm", None), 103, 8, 4 * MIB, "multicast"),
        (("vllm", None), 103, 8, 64 * MIB + 16, "nccl"),
        (("vllm", None), 103, 2, 4 * MIB - 16, "one_shot"),
        (("vllm", None), 100, 2, 8 * MIB, "torch_two_shot"),
        (("sglang", "0.5.14"), 100, 8, 720 * KIB, "push"),
        (("sglang", "0.5.14"), 100, 8, 720 * KIB + 16, "pull"),
        (("sglang", "0.5.14"), 100, 4, 2 * MIB, "push"),
        (("sglang", "0.5.14"), 100, 4, 2 * MIB + 16, "pull"),
        (("sglang", "0.5.14"), 100, 2, 4 * MIB, "push"),
        (("sglang", "0.5.14"), 90, 4, 384 * KIB + 16, "pull"),
        (("sglang", "0.5.14"), 90, 8, 17 * MIB, "nccl"),
        (("sglang", "0.5.23"), 90, 2, 16 * MIB, "push"),
        (("sglang", "0.5.23"), 90, 2, 16 * MIB + 16, "nccl"),
        (("sglang", "0.5.23"), 90, 4, 384 * KIB + 16, "pull"),
        (("sglang", "0.5.23"), 90, 8, 128 * KIB, "push"),
        (("sglang", "0.5.23"), 90, 8, 128 * KIB + 16, "pull"),
        (("sglang", None), 90, 8, 512 * KIB, "pull_multicast"),
        (("sglang", None), 100, 2, 8 * MIB + 16, "pull"),
        (("sglang", None), 103, 4, 640 * KIB, "push"),
        (("sglang", None), 103, 4, 640 * KIB + 16, "push_two_shot"),
        (("sglang", None), 103, 4, 8 * MIB + 16, "pull"),
        (("sglang", None), 100, 8, 256 * KIB + 16, "push_two_shot"),
        (("sglang", None), 100, 8, 8 * MIB, "push_two_shot"),
        (("sglang", None), 100, 8, 8 * MIB + 16, "pull_multicast"),
        (("sglang", None), 80, 8, MIB, "push"),
        (("sglang", None), 80, 8, MIB + 16, "pull"),
    ],
)  # fmt: skip
def test_the_switches(
    engine: tuple[str, str | None], sm: int, gpus: int, size: int, algorithms: str
) -> None:
    """Release, capability, ranks and bytes select the algorithm, on both sides of each limit."""
    assert algorithm_of(*engine, Ranks(gpus, sm), size=size, call=OWN) == algorithms


ONE, TWO = "flashinfer_one_shot", "flashinfer_two_shot"


@pytest.mark.parametrize(
    ("engine", "call", "ranks", "size", "algorithm"),
    [
        (("vllm", "0.17.0"), WITH_NORM, (8, 100), MIB, ONE),
        (("vllm", "0.17.0"), WITH_NORM, (8, 100), MIB + 16, "two_shot"),
        (("vllm", "0.17.0"), WITH_NORM, (8, 90), MIB // 2, ONE),
        (("vllm", "0.18.0"), WITH_NORM, (8, 90), MIB // 2 + 16, "multicast"),
        (("vllm", "0.24.0"), WITH_NORM, (4, 100), 4 * MIB + 16, TWO),
        (("vllm", "0.24.0"), None, (8, 100), 256 * KIB, "two_shot"),
        (("vllm", "0.28.0"), None, (8, 100), 16, "one_shot"),
        (("vllm", "0.18.0"), WITH_NORM, (8, 103), 16, "one_shot"),
        (("vllm", "0.28.0"), WITH_NORM, (8, 103), 2 * MIB, TWO),
        (("vllm", "0.28.0"), WITH_NORM, (8, 103), 2 * MIB + 16, "two_shot"),
        (("vllm", "0.33.0"), WITH_NORM, (8, 103), 4 * MIB, TWO),
        (("vllm", "0.33.0"), WITH_NORM, (8, 90), 128 * KIB, ONE),
        (("vllm", "0.33.0"), WITH_NORM, (8, 90), 128 * KIB + 16, TWO),
        (("vllm", "0.33.0"), None, (8, 90), 512 * KIB, TWO),
        (("vllm", "0.33.0"), None, (8, 90), 512 * KIB + 16, "multicast"),
        (("vllm", "0.33.0"), None, (8, 100), 128 * MIB, TWO),
        (("vllm", "0.32.0"), None, (8, 100), MIB, TWO),
        (("vllm", "0.32.0"), None, (8, 100), MIB + 16, "multicast"),
        (("vllm", "0.29.0"), None, (4, 103), 80 * MIB, TWO),
        (("vllm", None), None, (8, 100), 128 * MIB + 16, "nccl"),
        (("vllm", "0.33.0"), None, (6, 100), 16, "one_shot"),
        (("vllm", "0.33.0"), WITH_NORM, (2, 89), 16, "one_shot"),
        (("sglang", "0.5.6"), WITH_NORM, (8, 100), 42 * MIB // 16, ONE),
        (("sglang", "0.5.6"), WITH_NORM, (8, 100), 42 * MIB // 16 + 16, TWO),
        (("sglang", "0.5.6"), WITH_NORM, (8, 90), 16, "one_shot"),
        (("sglang", "0.5.7"), WITH_NORM, (8, 90), 16, ONE),
        (("sglang", "0.5.14"), WITH_NORM, (8, 100), 128 * KIB + 16, TWO),
        (("sglang", "0.5.14"), WITH_NORM, (8, 90), 128 * KIB + 16, ONE),
        (("sglang", "0.5.14"), None, (8, 100), 128 * KIB + 16, "push"),
    ],
)  # fmt: skip
def test_flashinfer_s_kernels(
    engine: tuple[str, str | None],
    call: str | None,
    ranks: tuple[int, int],
    size: int,
    algorithm: str,
) -> None:
    """Release, call, capability, ranks and bytes decide where FlashInfer's kernels run."""
    assert algorithm_of(*engine, Ranks(*ranks), size=size, call=call) == algorithm


def test_flashinfer_s_kernels_need_nvlink_and_a_domain() -> None:
    """Over PCIe and between machines of Hopper there are none; Blackwell's domain has them."""
    over_pcie = Ranks(2, 90, nvlink=False)
    assert algorithm_of("vllm", "0.33.0", over_pcie, size=16, call=WITH_NORM) == "one_shot"
    for sm, algorithm in ((90, "multicast"), (100, ONE)):
        two_machines = Ranks(8, sm, machine=4)
        assert algorithm_of("vllm", "0.33.0", two_machines, size=16, call=WITH_NORM) == algorithm
    assert algorithm_of("sglang", "0.5.12", two_machines, size=16, call=WITH_NORM) == "nccl"
    assert algorithm_of("sglang", "0.5.23", two_machines, size=16, call=WITH_NORM) == ONE


def test_sglang_fuses_few_tokens_and_left_out_an_h20() -> None:
    """SGLang fuses up to 2048 tokens, and on an H20 only in later releases."""
    h200, h20 = (Ranks(8, 90, device=f"NVIDIA {name}") for name in ("H200", "H20"))
    for release, ranks, tokens, algorithm in (
        ("0.5.9", h200, 2048, ONE), ("0.5.9", h200, 2049, "one_shot"),
        ("0.5.9", h20, 1, "one_shot"), ("0.5.14", h20, 1, ONE),
    ):  # fmt: skip
        given = algorithm_of("sglang", release, ranks, size=16, call=WITH_NORM, tokens=tokens)
        assert given == algorithm


LARGER = {
    "vllm": (ONE, TWO, "one_shot", "two_shot", "multicast", "torch_two_shot", "nccl"),
    "sglang": (
        ONE, TWO, "one_shot", "two_shot", "push", "push_two_shot", "pull", "pull_multicast", "nccl",
    ),
}  # fmt: skip
"""Algorithms in the order in which rising sizes have them."""


@given(
    engine=st.sampled_from([
        ("vllm", "0.14.0"), ("vllm", "0.18.0"), ("vllm", None),
        ("sglang", "0.5.9"), ("sglang", "0.5.12"), ("sglang", "0.5.23"), ("sglang", "a branch"),
    ]),
    sm=st.sampled_from([80, 89, 90, 100, 103, 120]),
    gpus=st.integers(2, 16),
    sizes=st.lists(st.integers(1, 2**28), min_size=2, max_size=9),
    dtype=st.sampled_from(["bfloat16", "float16"]),
    call=st.sampled_from([OWN, WITH_NORM, None]),
)  # fmt: skip
def test_larger_messages_never_go_back_to_an_algorithm_of_smaller_ones(
    *,
    engine: tuple[str, str | None],
    sm: int,
    gpus: int,
    sizes: list[int],
    dtype: str,
    call: str | None,
) -> None:
    """As messages grow, no algorithm comes back once another has replaced it, on any GPUs."""
    algorithms = [
        algorithm_of(
            *engine, Ranks(gpus, sm), size=size, dtype=dtype, call=call, tokens=size / 8192
        )
        for size in sorted(sizes)
    ]
    places = [LARGER[engine[0]].index(algorithm) for algorithm in algorithms]
    assert places == sorted(places)
    assert gpus in (2, 4, 6, 8) or {*algorithms} <= {"nccl", *({ONE, TWO} if call != OWN else ())}


@pytest.mark.parametrize(
    ("dtype", "size", "algorithms"),
    [
        ("bfloat16", 256 * KIB, "multicast"),
        ("float16", 256 * KIB - 16, "one_shot"),
        ("float16", 256 * KIB, "nccl"),
    ],
)
def test_symmetric_memory_is_of_bfloat16(dtype: str, size: int, algorithms: str) -> None:
    """From 256 KiB on vLLM sums bfloat16 in symmetric memory, and float16 by NCCL."""
    given = algorithm_of("vllm", None, Ranks(8, 90), size=size, dtype=dtype, call=OWN)
    assert given == algorithms


@pytest.mark.parametrize(("gpus", "algorithm"), [(2, "one_shot"), (4, "nccl")])
def test_over_pcie_more_than_two_use_nccl(gpus: int, algorithm: str) -> None:
    """Without NVLink the engines' own kernels join at most two GPUs."""
    ranks = Ranks(gpus, 89, nvlink=False)
    assert algorithm_of("vllm", "0.24.0", ranks, size=16) == algorithm


@pytest.mark.parametrize(("backend", "algorithm"), [("vllm", "multicast"), ("sglang", "nccl")])
def test_own_kernels_end_at_the_machine(backend: str, algorithm: str) -> None:
    """Ranks on two machines of one NVLink domain use NCCL."""
    given = algorithm_of(backend, None, Ranks(8, 103, machine=4), size=16, call=OWN)
    assert given == algorithm


def test_rounds_of_a_grid() -> None:
    """A grid of 36 blocks of 512 threads loads 288 KiB a round; in two shots each loads a part."""
    assert rounds_of("one_shot", 2, 288 * KIB) == 1
    assert rounds_of("one_shot", 2, 288 * KIB + 1) == 2
    assert rounds_of("two_shot", 4, 4 * 288 * KIB) == 2
    assert rounds_of("push", 4, 4 * MIB) == 0
