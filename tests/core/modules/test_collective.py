"""Bytes that collectives send, against counts of each rank's steps, and the busiest rank."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nearfree.core.modules.collective import (
    MULTICAST,
    ONE_SHOT,
    RING,
    load_imbalance,
    payload_bytes,
    sent_bytes,
    sent_ratio,
    setting_imbalance,
)
from nearfree.core.modules.registry import kind_of
from nearfree.core.setting import Setting
from nearfree.core.setting_check import check_setting
from nearfree.errors import ConfigError, EvidenceError

GPUS = st.sampled_from([2, 3, 4, 6, 8, 16])
REDUCE = Setting(
    module="collective", backend="vllm", dtype="bfloat16", operation="all_reduce", gpus=8,
    d_model=4096, batch=2,
)  # fmt: skip
DISPATCH = Setting(
    module="collective", backend="sglang", dtype="bfloat16", operation="dispatch", gpus=4,
    d_model=128, experts=16, top_k=2, routing="skewed",
)  # fmt: skip


def ring(gpus: int, *, rounds: int) -> float:
    """Return what a rank sends around a ring, counted: a piece of 1 / g in each of g - 1 steps."""
    return sum(1 / gpus for _ in range(rounds) for _ in range(gpus - 1))


@given(GPUS)
def test_bytes_sent_are_those_of_the_steps(gpus: int) -> None:
    """A gather is one trip around the ring, an all-reduce two, one shot reads all other buffers."""
    assert sent_ratio("all_gather", gpus) == pytest.approx(ring(gpus, rounds=1))
    assert sent_ratio("reduce_scatter", gpus) == pytest.approx(ring(gpus, rounds=1))
    assert sent_ratio("all_reduce", gpus, RING) == pytest.approx(ring(gpus, rounds=2))
    assert sent_ratio("all_reduce", gpus, ONE_SHOT) == gpus - 1
    assert sent_ratio("all_reduce", gpus, MULTICAST) == pytest.approx(1 + 1 / gpus)
    assert sent_ratio("send", gpus) == 1


def test_bytes_are_those_of_rows() -> None:
    """A payload is b N rows of d_model elements, and of a dispatch k copies of each."""
    assert payload_bytes(REDUCE, 3) == 2 * 3 * 4096 * 2
    assert payload_bytes(DISPATCH, 3) == 3 * 128 * 2 * 2
    assert sent_bytes(REDUCE, 1) == 2 * 4096 * 2 * 14 / 8
    work = kind_of(REDUCE).executed(REDUCE, 1, "any")
    assert (work.flop_executed, work.bytes_compulsory) == (0, 28672)


def test_rows_of_eight_bits_have_scales() -> None:
    """A dispatched row of 8 bits has a float32 for 128 elements."""
    from msgspec.structs import replace

    assert payload_bytes(replace(DISPATCH, dtype="float8"), 1) == 2 * (128 + 4)


LOADS = st.lists(st.integers(0, 50), min_size=8, max_size=8)


@given(LOADS, st.integers(1, 8))
def test_no_rank_has_more_pairs_than_the_busiest(loads: Sequence[int], ranks: int) -> None:
    """No rank has more pairs than the busiest, and equal ranks have an imbalance of one.

    Experts are not divided between ranks; the first ranks have one more where they do not divide
    evenly.
    """
    imbalance = load_imbalance(loads, ranks)
    experts_held = [len(loads) // ranks + (rank < len(loads) % ranks) for rank in range(ranks)]
    pairs = [
        sum(loads[sum(experts_held[:rank]) : sum(experts_held[: rank + 1])])
        for rank in range(ranks)
    ]
    assert imbalance * sum(loads) / ranks == pytest.approx(max(pairs) if sum(loads) else 0)
    assert (imbalance == 1.0) == (len(set(pairs)) == 1)


def test_skewed_routing_loads_the_first_rank() -> None:
    """Skewed routing sends all to the first k experts, which are on the first rank."""
    assert setting_imbalance(DISPATCH) == 4.0
    assert setting_imbalance(REDUCE) == 1.0
    even = Setting(**{name: getattr(DISPATCH, name) for name in DISPATCH.__struct_fields__}
                   | {"routing": "balanced"})  # fmt: skip
    assert setting_imbalance(even) == 1.0
    assert sent_bytes(DISPATCH, 1) == 4 * sent_bytes(even, 1)


def test_a_rank_with_one_expert_more_is_the_busiest() -> None:
    """Of 16 experts three ranks have 6, 5 and 5; the first has all of the first two.

    A public table's exchange has no routing: its ranks hold equally many experts.
    """
    from msgspec.structs import replace

    uneven = replace(DISPATCH, gpus=3)
    assert setting_imbalance(uneven) == 3.0
    assert setting_imbalance(replace(uneven, top_k=9)) == pytest.approx(6 * 3 / 9)
    assert setting_imbalance(replace(uneven, routing="balanced")) == 6 * 3 / 16
    assert setting_imbalance(replace(uneven, routing=None)) == 1.0


def test_an_unknown_load_is_refused() -> None:
    """Routing by a power law determines no load by itself."""
    from msgspec.structs import replace

    with pytest.raises(EvidenceError, match="power_law"):
        sent_bytes(replace(DISPATCH, routing="power_law"), 1)


@pytest.mark.parametrize("name", ["gpus", "operation", "d_model", "top_k", "experts"])
def test_a_dispatch_without_a_required_field_is_refused(name: str) -> None:
    """A dispatch without its ranks, operation, width or experts is refused by the field's name."""
    from msgspec.structs import replace

    check_setting(DISPATCH)
    with pytest.raises(ConfigError, match=name):
        check_setting(replace(DISPATCH, **{name: None}))
