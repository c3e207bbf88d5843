"""A whole model as a kernel: its logits, what settings share, and refusals."""

from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from nearfree.backends.adapters.kernel import ExecutionContext, make_kernel
from nearfree.config.model_studies import model_sweeps
from nearfree.core.routing_names import ModelRouting
from nearfree.core.setting import Mask, Setting
from nearfree.errors import ConfigError, EvidenceError
from nearfree.models import footprint
from nearfree.models.kernel import ModelKernel, bytes_read
from whole_models import DENSE, LING, MOE, model_study, small

POSITIONS = (1, 4, 9)
MODELS = {kind: small(kind) for kind in (DENSE, MOE, LING)}
DIGEST = MODELS[MOE].digest


def setting(kind: str = DENSE, **changes: Any) -> Setting:
    """Return the only setting of a study of a small model."""
    changes = changes if kind == DENSE else {"routing": ["balanced"]} | changes
    (sweep,) = model_sweeps(model_study(kind, **changes), MODELS[kind])
    return sweep.setting


def execution(kind: str = DENSE, **changes: Any) -> ExecutionContext:
    """Return a CPU, given the model of a plan."""
    return ExecutionContext(models={"small": MODELS[kind].plain}, **changes)


def make(where: ExecutionContext, kind: str = DENSE, **changes: Any) -> ModelKernel:
    """Return the kernel of a small model."""
    kernel = make_kernel(setting(kind, **changes), POSITIONS, where)
    assert isinstance(kernel, ModelKernel)
    return kernel


CASES = [
    *((DENSE, mask, None) for mask in get_args(Mask)),
    *(
        (kind, mask, routing)
        for kind in (MOE, LING)
        for mask in get_args(Mask)
        for routing in get_args(ModelRouting)
    ),
]


@pytest.mark.parametrize(("kind", "mask", "routing"), CASES)
def test_logits_of_every_position(kind: str, mask: Mask, routing: ModelRouting | None) -> None:
    """A forward gives finite logits of all N positions of every request, for planned N only."""
    axes = {"batch": [2], "mask": mask} | ({"routing": [routing]} if routing else {})
    kernel = make(execution(kind), kind, **axes)
    for n in POSITIONS:
        logits = kernel.forward(n)
        assert (logits.shape, logits.dtype) == ((2, n, 97), torch.float32)
        assert torch.isfinite(logits).all()
    with pytest.raises(KeyError):
        kernel.forward(2)


@settings(deadline=None, max_examples=8)
@given(st.sampled_from([DENSE, MOE, LING]), st.integers(1, 3), st.integers(0, 33))
def test_the_same_setting_gives_the_same_logits(kind: str, batch: int, context: int) -> None:
    """A kernel made again from the seed gives the same logits."""
    axes = {"batch": [batch], "context": [max(context, 1)]}
    one, two = (make(execution(kind), kind, **axes) for _ in range(2))
    torch.rand(context)
    for n in POSITIONS:
        assert one.forward(n).equal(two.forward(n))


def test_k_adds_no_weights() -> None:
    """Settings with another k share weights and caches."""
    where = execution(MOE)
    make(where, MOE, top_k=[2], positions=[1, 4, 9])
    before = dict(where.shared)
    second = make(where, MOE, top_k=[8], positions=[1, 4, 9])
    assert where.shared.keys() == before.keys()
    assert all(where.shared[key] is tensor for key, tensor in before.items())
    assert torch.isfinite(second.forward(4)).all()


def test_another_batch_adds_caches_alone() -> None:
    """A larger batch has its own caches and shares the weights."""
    where = execution(MOE)
    make(where, MOE)
    weights = {key for key in where.shared if key[0] == DIGEST}
    make(where, MOE, batch=[3])
    assert {key for key in where.shared if key[0] == DIGEST} == weights
    assert len(where.shared) - len(weights) == 2 * 2 * 3


def test_copies_take_turns() -> None:
    """Forwards use the copies of the weights in turn, with equal numbers."""
    where = execution(copies=2)
    kernel = make(where)
    heads = [forward._head for forward in kernel._forwards]
    assert heads[0].data_ptr() != heads[1].data_ptr()
    first, second, third = (kernel.forward(4) for _ in range(3))
    assert first.equal(second)
    assert first.equal(third)
    assert kernel._next_copy == 1


READ, LARGEST = bytes_read(setting(), MODELS[DENSE], 1)


@pytest.mark.parametrize(
    ("copies", "cache_bytes", "made", "cache"),
    [
        (1, READ - LARGEST, 1, "cold"),
        (1, READ - LARGEST + 1, 1, "warm"),
        (2, 2 * READ - LARGEST, 2, "cold"),
        (2, 2 * READ - LARGEST + 1, 2, "warm"),
        (0, 0, 1, "cold"),
        (0, READ - LARGEST, 1, "cold"),
        (0, READ - LARGEST + 1, 1, "warm"),
        (0, 2 * READ - LARGEST, 2, "cold"),
    ],
)
def test_a_model_is_cold_if_the_rest_of_it_fills_the_cache(
    copies: int, cache_bytes: int, made: int, cache: str
) -> None:
    """A model is cold if the reads between two reads of its largest module fill the cache."""
    kernel = make(execution(copies=copies, cache_bytes=cache_bytes))
    assert (len(kernel._forwards), kernel.cache) == (made, cache)


@pytest.mark.parametrize("kind", [DENSE, MOE])
def test_what_does_not_fit_is_refused(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With ten kilobytes free a model is refused with its parts, and nothing is made."""
    monkeypatch.setattr(footprint, "free_bytes", lambda _: 10**4)
    monkeypatch.setattr(torch, "empty", None)
    where = execution(kind)
    message = r"small with L=40, batch 1, N=9 needs \d\.\d GB \(weights .*KV cache .* are free"
    with pytest.raises(EvidenceError, match=message) as caught:
        make(where, kind)
    assert caught.value.remedy
    assert where.shared == {}


def test_a_context_of_too_many_positions_is_refused() -> None:
    """A cache that no machine holds is refused before it is allocated."""
    where = execution()
    with pytest.raises(EvidenceError, match="KV cache"):
        make(where, context=[10**12])
    assert where.shared == {}


def test_weights_that_are_there_are_not_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second setting of a model needs no memory for the shared weights."""
    where = execution(MOE)
    make(where, MOE)
    weights = sum(t.nbytes for key, t in where.shared.items() if key[0] == DIGEST)
    monkeypatch.setattr(footprint, "free_bytes", lambda _: weights)
    make(where, MOE, top_k=[2], positions=[9])
    with pytest.raises(EvidenceError, match="small with L=40"):
        make(execution(MOE), MOE, top_k=[2], positions=[9])


def test_another_model_of_the_name_is_not_run() -> None:
    """A plan's model must have the digest of its setting."""
    where = ExecutionContext(models={"small": small(num_hidden_layers=4).plain})
    with pytest.raises(ConfigError, match="is not that of its setting"):
        make(where)
