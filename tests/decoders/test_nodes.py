"""Over how many nodes a deployment's GPUs lie: engines order their ranks, nodes take them so."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nearfree.core.parallel import Parallel
from nearfree.decoders.engines import SGLANG, TRTLLM, VLLM, Engine
from nearfree.decoders.nodes import ON_ONE, Nodes, nodes_of

NODE = 8


@pytest.mark.parametrize(
    ("degrees", "stages_inside", "groups_inside"),
    [
        ({"tp": 8, "dp": 2}, (2, 0), (2, 0)),
        ({"tp": 8, "pp": 2}, (1, 1), (1, 1)),
        ({"tp": 4, "pp": 4}, (1, 1), (1, 1)),
        ({"tp": 4, "dp": 2, "pp": 2}, (2, 0), (1, 1)),
        ({"tp": 2, "dp": 3, "pp": 3}, (3, 0), (1, 2)),
        ({"tp": 2, "dp": 5, "pp": 2}, (3, 0), (2, 1)),
        ({"tp": 3, "dp": 3}, (2, 0), (2, 0)),
        ({"tp": 4, "dp": 3}, (2, 0), (2, 0)),
        ({"dp": 16}, (2, 0), (2, 0)),
        ({"tp": 16, "dp": 2}, (4, 0), (4, 0)),
        ({"tp": 4, "dp": 2}, ON_ONE, ON_ONE),
    ],
)
def test_the_order_of_ranks_says_what_leaves_a_node(
    degrees: dict[str, int], stages_inside: Nodes, groups_inside: Nodes
) -> None:
    """With 8 GPUs a node: vLLM's stages of a dp group are neighbours, else a stage's groups are."""
    parallel = Parallel(**degrees)
    assert nodes_of(parallel, VLLM, NODE) == stages_inside
    for engine in (SGLANG, TRTLLM):
        assert nodes_of(parallel, engine, NODE) == groups_inside
    assert nodes_of(parallel, VLLM, None) == ON_ONE


@given(
    tp=st.sampled_from((1, 2, 4, 8)),
    dp=st.sampled_from((1, 2, 4, 8, 16)),
    pp=st.sampled_from((1, 2, 4, 8)),
    engine=st.sampled_from((VLLM, SGLANG)),
)
def test_degrees_that_fill_nodes_are_counted_by_their_ranks(
    tp: int, dp: int, pp: int, engine: Engine
) -> None:
    """Of powers of two the nodes are those of numbered ranks, eight to a node."""
    strides = (tp * pp, tp) if engine is VLLM else (tp, tp * dp)
    groups = {group * strides[0] // NODE for group in range(dp)}
    hops = [stage * strides[1] // NODE for stage in range(pp)]
    crossings = sum(here != there for here, there in pairwise(hops))
    assert nodes_of(Parallel(tp=tp, dp=dp, pp=pp), engine, NODE) == (len(groups), crossings)
