"""Degrees of parallelism and the GPUs of a deployment."""

import pytest
from nearfree.core.parallel import DEGREES, KINDS, ONE_GPU, Parallel
from nearfree.core.setting import FIELDS
from nearfree.errors import ConfigError


@pytest.mark.parametrize(
    ("degrees", "gpus", "moe_tp"),
    [
        ({}, 1, 1),
        ({"tp": 8}, 8, 8),
        ({"tp": 8, "ep": 2}, 8, 4),
        ({"dp": 8, "ep": 8}, 8, 1),
        ({"tp": 8, "pp": 2}, 16, 8),
    ],
)
def test_gpus_are_those_of_all_stages_and_experts_are_cut_over_the_rest(
    degrees: dict[str, int], gpus: int, moe_tp: int
) -> None:
    parallel = Parallel(**degrees)
    assert (parallel.gpus, parallel.moe_tp) == (gpus, moe_tp)


def test_ep_divides_the_ranks_that_share_the_experts() -> None:
    assert ONE_GPU.ep == 1
    with pytest.raises(ConfigError, match="ep 3 does not divide the 8 ranks"):
        Parallel(tp=4, dp=2, ep=3)


def test_each_degree_is_a_field_of_settings_and_names_its_kind() -> None:
    """Columns, options and figures follow from the degrees: each has a meaning and a kind."""
    assert tuple(KINDS) == DEGREES
    assert all(FIELDS[name].meaning and FIELDS[name].default == 1 for name in DEGREES)
