"""llama.cpp's forward on a GPU for the rules: kernels and passes of its matrices."""

import pytest
from nearfree.derive.granularity.engine_cuda import CudaEngineRules
from nearfree.derive.granularity.resolve import Resolver
from nearfree.errors import ConfigError, EvidenceError
from nearfree.log.names import Layout

from derive.engines import BUILT, PREBUILT, forward, matrix
from derive.questions import RESOLVER


def rules(*kinds: str, sm: int = 89, **changes: object) -> CudaEngineRules:
    """Return the rules on record for a forward whose matrices have a depth of 4096."""
    matrices = tuple(
        matrix(kind, part=f"part{place}", columns=4096, count=60 - 20 * place)
        for place, kind in enumerate(kinds)
    )
    return CudaEngineRules(forward(**{"matrices": matrices, **changes}), sm, RESOLVER)


@pytest.mark.parametrize("release", [BUILT, PREBUILT])
def test_changes_are_of_kernels_and_numbers_of_passes(release: str) -> None:
    """Tiles of another width are none; those of more than 128 rows take another pass."""
    changes = rules("q4_k", release=release).changes(260)
    steps = [(step.n, step.path, step.rule, step.before, step.after) for step in changes]
    assert steps == [
        (9, "mmq", "product", 1, 1),
        (129, "mmq", "mmq_tiles", 1, 2),
        (257, "mmq", "mmq_tiles", 2, 3),
    ]
    assert changes[0].replaced == ("mmvq",)
    assert "ggml/src/ggml-cuda/mmvq.cu:" in changes[0].place
    assert "ggml/src/ggml-cuda/mmq.cuh:" in changes[1].place


def test_rows_are_those_of_all_requests() -> None:
    """A forward over N positions of b requests has b N rows."""
    changes = rules("q4_k", batch=4).changes(8)
    assert [(change.n, change.rows) for change in changes] == [(3, 12)]


def test_each_type_changes_by_itself_and_by_the_gpu() -> None:
    """On 8.9 Q2_K changes first, before 8.9 it changes with the others."""
    for sm, q2_k in ((89, 5), (86, 9)):
        first = rules("q4_k", "q2_k", sm=sm).first_changes(1, 33)
        assert {name: change.n for name, change in first.items()} == {
            "mul_mat q4_k": 9, "mul_mat q2_k": q2_k,
        }  # fmt: skip


def test_experts_of_few_tokens_are_read_by_each() -> None:
    """A pass more for each token, until tokens are sorted by expert."""
    experts = matrix("q4_k", part="ffn_up_exps", columns=4096, count=64, routed=True)
    router = matrix("f32", part="ffn_gate_inp", rows=32, columns=4096, count=2)
    changes = [item for item in rules(matrices=(experts, router)).changes(33) if item.routed]
    assert [(change.n, change.path, change.after) for change in changes] == [
        *((n, "mmvq", n) for n in range(2, 9)),
        (9, "mmq", 1),
    ]


def test_a_product_of_one_output_is_left_out() -> None:
    """A shared expert's gate, whose rules are not read, keeps no file from its answer."""
    up = matrix("q4_k", part="ffn_up_shexp", columns=4096)
    gate = matrix("f32", part="ffn_gate_inp_shexp", rows=1, columns=4096)
    assert [group.matrix for group in rules(matrices=(up, gate)).matrix_groups] == [up]


def test_what_is_not_read_is_refused_by_name(tmp_path) -> None:
    """An odd type, no matrices, an older GPU, and a release without rules."""
    with pytest.raises(ConfigError, match="tq1_0"):
        rules("tq1_0")
    with pytest.raises(EvidenceError, match="no matrices"):
        rules(matrices=())
    with pytest.raises(EvidenceError, match="compute capability 70"):
        rules("q4_k", sm=70)
    with pytest.raises(EvidenceError, match=r"rules extract llama-cpp-cuda==3\.22\.1"):
        CudaEngineRules(forward("q8_0"), 89, Resolver(Layout(tmp_path)))
