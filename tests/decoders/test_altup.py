"""States that alternate and a narrow branch: their products, shards and collectives."""

from pathlib import Path

import pytest
from nearfree.backends.names import BackendRelease
from nearfree.core.parallel import Parallel
from nearfree.decoders.altup import (
    CORRECTION,
    LAUREL,
    LAUREL_OUTPUT,
    PREDICTION,
    PROJECTIONS,
    ROUTERS,
    AltUp,
    altup_products,
)
from nearfree.decoders.ranks.caveats import caveats
from nearfree.decoders.ranks.collectives import BRANCH_SUM, LAYER_INPUTS, STATES, collectives
from nearfree.decoders.ranks.engines import VLLM
from nearfree.decoders.ranks.shards import refusals, shard

from decoders.files import modules_by_role, read


def test_products_are_those_of_the_class() -> None:
    """Four states of 2048 elements have six projections; two routers stand around each layer."""
    products = altup_products(AltUp(states=4, rank=64), 2048, 35, 1)
    assert {product.role: product[1:] for product in products} == {
        ROUTERS: (70, 2048, 4),
        PREDICTION: (35, 4, 16),
        CORRECTION: (35, 4, 4),
        LAUREL: (35, 2048, 64),
        LAUREL_OUTPUT: (35, 64, 2048),
        PROJECTIONS: (6, 2048, 2048),
    }


def test_one_state_has_no_projections_and_no_states_no_products() -> None:
    """A single state is the residual itself, and a decoder without any runs none of it."""
    roles = {product.role for product in altup_products(AltUp(states=1, rank=8), 64, 6, 1)}
    assert PROJECTIONS not in roles
    assert list(altup_products(None, 64, 6, 1)) == []


def test_a_rank_has_its_part_of_the_branch_and_of_projections(tmp_path: Path) -> None:
    """Routers and coefficients are whole on each rank."""
    decoder, parallel = read(tmp_path, "gemma3n_text"), Parallel(tp=2)
    altup = shard(decoder, parallel).decoder.altup
    assert altup == AltUp(states=3, rank=4)
    uses = modules_by_role(decoder, parallel=parallel)
    sizes = {role: (use.setting.d_model, use.setting.d_ff) for role, use in uses.items()}
    assert sizes[LAUREL] == (64, 4)
    assert sizes[LAUREL_OUTPUT] == (4, 64)
    assert sizes[PROJECTIONS] == (64, 32)
    assert sizes[ROUTERS] == (64, 3)


def test_a_rank_of_the_branch_must_divide(tmp_path: Path) -> None:
    """What tp does not divide is refused by its size, with the sizes that do."""
    decoder = read(tmp_path, "gemma3n_text", laurel_rank=6)
    reasons = [str(each) for each in refusals(decoder, Parallel(tp=4), VLLM, {})]
    assert any("6, the rank of the branch beside a layer" in reason for reason in reasons)
    assert not refusals(decoder, Parallel(tp=2), VLLM, {})


def test_branch_and_states_are_summed_and_gathered_over_ranks(tmp_path: Path) -> None:
    """Each layer has a third all-reduce; projections and inputs of layers are gathered."""
    decoder = read(tmp_path, "gemma3n_text")
    engine = BackendRelease("vllm", "0.33.0")
    uses = {
        use.role: (use.count, use.setting.operation, use.setting.d_model)
        for use in collectives(decoder, Parallel(tp=2), batch=1, engine=engine)
    }
    assert uses[BRANCH_SUM] == (6, "all_reduce", 64)
    assert uses[STATES] == (4, "all_gather", 64)
    assert uses[LAYER_INPUTS] == (1, "all_gather", 60)


@pytest.mark.parametrize("part", ["mixing of 3 states", "make queries alone"])
def test_what_is_left_out_is_said(tmp_path: Path, part: str) -> None:
    """Sums by row are not timed, and engines differ in what layers without a cache make."""
    assert any(part in sentence for sentence in caveats(read(tmp_path, "gemma3n_text")))
