"""The number of nodes of a deployment: engines order their ranks, and nodes take them in order."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nearfree.core.parallel import Parallel
from nearfree.decoders.ranks.engines import SGLANG, TRTLLM, VLLM, Engine
from nearfree.decoders.ranks.nodes import ON_ONE, nodes_of

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
        ({"tp": 4, "dp": 2}, (1, 0), (1, 0)),
    ],
)
def test_the_order_of_ranks_says_what_leaves_a_node(
    degrees: dict[str, int], stages_inside: tuple[int, int], groups_inside: tuple[int, int]
) -> None:
    """With 8 GPUs a node: vLLM's stages of a dp group are neighbours, else a stage's groups are."""
    parallel = Parallel(**degrees)
    assert nodes_of(parallel, VLLM, NODE)[:2] == stages_inside
    for engine in (SGLANG, TRTLLM):
        assert nodes_of(parallel, engine, NODE)[:2] == groups_inside
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
    crossings = sum(hop != next_hop for hop, next_hop in pairwise(hops))
    nodes = nodes_of(Parallel(tp=tp, dp=dp, pp=pp), engine, NODE)
    assert nodes[:2] == (len(groups), crossings)


@pytest.mark.parametrize(
    ("degrees", "of_vllm", "of_sglang"),
    [
        ({"dp": 16}, 8, 8),
        ({"dp": 9}, 1, 1),
        ({"tp": 4, "dp": 3}, 4, 4),
        ({"tp": 3, "dp": 3}, 3, 3),
        ({"dp": 5, "pp": 2}, 1, None),
        ({"tp": 16, "dp": 2}, 8, 8),
        ({"tp": 12}, 4, 4),
    ],
)
def test_the_last_node_has_what_the_others_leave(
    degrees: dict[str, int], of_vllm: int, of_sglang: int | None
) -> None:
    """Of the ranks of a stage it has fewest, which all others wait for; on one node none has."""
    fewest = [nodes_of(Parallel(**degrees), engine, NODE).fewest for engine in (VLLM, SGLANG)]
    assert fewest == [of_vllm, of_sglang]


@given(
    tp=st.integers(1, 9),
    dp=st.integers(1, 9),
    pp=st.integers(1, 9),
    engine=st.sampled_from((VLLM, SGLANG)),
)
def test_a_deployment_that_fits_on_a_node_is_on_one(
    tp: int, dp: int, pp: int, engine: Engine
) -> None:
    """No rank leaves a node that has as many GPUs as there are ranks, or more."""
    parallel = Parallel(tp=tp, dp=dp, pp=pp)
    for spare in (0, 1, 7):
        assert nodes_of(parallel, engine, parallel.gpus + spare) == ON_ONE
