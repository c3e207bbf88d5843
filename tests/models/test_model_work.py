"""The work of a model's forward: counted by hand, by torch, and module by module."""

from typing import Any

import pytest
from backends.adapters.shapes import counted_flop
from nearfree.backends.adapters.kernel import ExecutionContext, make_kernel
from nearfree.config.model_studies import model_sweeps
from nearfree.core.setting import Setting
from nearfree.models.kernel import bytes_read, model_work
from whole_models import DENSE, LING, MOE, model_study, small

MODELS = {kind: small(kind) for kind in (DENSE, MOE, LING)}
CONTEXT = 40


def setting(kind: str = DENSE, **changes: Any) -> Setting:
    """Return the first setting of a study of a small model."""
    return model_sweeps(model_study(kind, **changes), MODELS[kind])[0].setting


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("n", [1, 2, 7])
def test_a_dense_forward_by_hand(batch: int, n: int) -> None:
    """Three layers of 64 wide, eight heads of 16 over two of keys, an FFN of 96, 97 logits."""
    row = 3 * (64 * (8 + 2 * 2) * 16 + 8 * 16 * 64 + 3 * 64 * 96) + 64 * 97
    seen = {"causal": n * CONTEXT + n * (n + 1) // 2, "block": n * (CONTEXT + n)}
    for mask, pairs in seen.items():
        work = model_work(setting(batch=[batch], mask=mask), MODELS[DENSE], n)
        assert work.flop_logical == 2 * batch * (n * row + 3 * 2 * 8 * 16 * pairs)
        assert work.flop_executed == work.flop_logical


@pytest.mark.parametrize("routing", ["balanced", "skewed"])
def test_a_forward_with_experts_by_hand(routing: str) -> None:
    """Experts count each token's k; padded blocks count their rows as executed work alone."""
    moe = {"moe": "torch_padded", "routing": [routing]}
    work = model_work(setting(MOE, **moe), MODELS[MOE], 1)
    dense = 3 * (64 * (8 + 2 * 2) * 16 + 8 * 16 * 64 + 64 * 16) + 64 * 97
    attention = 3 * 2 * 8 * 16 * (CONTEXT + 1)
    assert work.flop_logical == 2 * (dense + attention + 3 * 3 * 4 * 64 * 24)
    assert work.flop_executed - work.flop_logical == 2 * 3 * 3 * 4 * 15 * 64 * 24
    bare = model_work(setting(MOE, moe="torch_grouped", routing=[routing]), MODELS[MOE], 1)
    assert bare.flop_executed == bare.flop_logical == work.flop_logical


@pytest.mark.parametrize("kind", [DENSE, MOE, LING])
def test_the_work_is_what_torch_counts(kind: str) -> None:
    """The FLOPs executed are those that torch's counter sees, and attention, which it does not."""
    counted = setting(kind, mask="block", batch=[2])
    kernel = make_kernel(counted, (1, 5), ExecutionContext(models={"small": MODELS[kind].plain}))
    for n in (1, 5):
        attention = 3 * 4 * 2 * 8 * 16 * n * (CONTEXT + n)
        assert kernel.work(n).flop_executed == counted_flop(kernel, n) + attention


def test_bytes_by_hand() -> None:
    """Each weight moves once, keys and values once, and what goes into and out of each module."""
    rows = 2
    gemms = [(64, 192, 3), (128, 64, 3), (64, 97, 1)]
    elements = sum(count * (wide * high + rows * (wide + high)) for wide, high, count in gemms)
    elements += 3 * (3 * 64 * 96 + rows * (2 * 64 + 6 * 96))
    elements += 3 * 2 * (2 * (CONTEXT + 2) + 8 * 2) * 16
    total, largest = bytes_read(setting(), MODELS[DENSE], 2)
    assert total == model_work(setting(), MODELS[DENSE], 2).bytes_compulsory == 4 * elements
    assert largest == 4 * (3 * 64 * 96 + rows * (2 * 64 + 6 * 96))


def test_a_router_counts_as_if_it_spread_evenly() -> None:
    """The work of a model's own router is that of even use, and says so."""
    own, even = (
        model_work(setting(LING, routing=[routing]), MODELS[LING], 5)
        for routing in ("router", "balanced")
    )
    assert own.flop_executed == even.flop_executed
    assert "experts as if evenly used" in own.basis
    assert "evenly" not in even.basis
    assert "8 kinds of modules" in even.basis


def test_a_settings_k_counts() -> None:
    """Twice the experts a token are twice their FLOPs."""
    one, two = (
        model_work(setting(MOE, top_k=[k], routing=["skewed"]), MODELS[MOE], 3).flop_logical
        for k in (2, 4)
    )
    assert two - one == 2 * 3 * 3 * 2 * 3 * 64 * 24
