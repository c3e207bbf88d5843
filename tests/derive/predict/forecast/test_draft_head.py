"""A draft of a head: its layers on all rows of a step, then on one a request, and its products."""

import pytest
from msgspec.structs import replace
from nearfree.backends.names import backend
from nearfree.decoders.draft_head import DraftHead
from nearfree.decoders.modules import HEAD
from nearfree.derive.predict.forecast.deployment import Questions
from nearfree.derive.predict.forecast.draft_head import _of_head, head_shares
from nearfree.derive.predict.forecast.total import total
from nearfree.errors import EvidenceError

from derive.predict.forecast.pool import DENSE, deployment
from derive.predict.forecast.test_total import BLIND

GRID = [1, 2, 3, 4]
ASKED = [deployment(DENSE, "balanced", batch=b, platform="h20") for b in (1, 8)]
FOUND = total(Questions(ASKED, GRID), BLIND)
LAYER = replace(ASKED[0].decoder, layers=1, vocabulary=32000)
FIRST = DraftHead(decoder=LAYER, fc_inputs=2 * LAYER.d_model, every_run=True, wide=False)
THIRD = replace(FIRST, fc_inputs=3 * LAYER.d_model, every_run=False, wide=True)


def test_a_round_is_the_layer_and_its_products() -> None:
    """Of a first head: all modules but the LM head on all rows, `fc` with them, each run again."""
    shares = head_shares(FOUND, ASKED, FIRST, BLIND, {})
    for place, each in enumerate(ASKED):
        alone = _of_head(each, LAYER)
        product = replace(
            alone, decoder=replace(LAYER, d_model=2 * LAYER.d_model, vocabulary=LAYER.d_model)
        )
        found = total(Questions([alone, product], GRID), BLIND)
        (head,) = (at for at, role in found.roles[0].items() if role == HEAD)
        (fc,) = (at for at, role in found.roles[1].items() if role == HEAD)
        body = found.latency_us[0].sum(axis=0) - found.latency_us[0, head] + found.latency_us[1, fc]
        once = body + found.latency_us[0, head, 0]
        runs = [once[0], once[1], once[2] + once[0], once[3] + 2 * once[0]]
        base = FOUND.model_us[place, 0]
        assert shares[each.batch] == pytest.approx([us / base for us in runs])


def test_a_third_head_costs_more_than_its_layer_alone() -> None:
    """Wider products cost more, by less than the layer with twice its weights; `fc` runs once."""
    narrow = head_shares(FOUND, ASKED, replace(THIRD, wide=False), BLIND, {})
    wide = head_shares(FOUND, ASKED, THIRD, BLIND, {})
    for batch, shares in wide.items():
        assert all(n < w < 1.5 * n for n, w in zip(narrow[batch], shares, strict=True))
        every = head_shares(FOUND, ASKED, replace(THIRD, every_run=True), BLIND, {})[batch]
        assert every[:2] == pytest.approx(shares[:2])
        assert all(e > s for e, s in zip(every[2:], shares[2:], strict=True))


def test_the_host_counts_every_run_where_it_is_served() -> None:
    """A run costs the host a step's constant, and its layers' kernels."""
    steps = BLIND.engine_steps
    alone = head_shares(FOUND, ASKED, THIRD, BLIND, steps)
    served = head_shares(FOUND, [replace(x, served=True) for x in ASKED], THIRD, BLIND, steps)
    known = steps[ASKED[0].engine.name].constants
    for place, each in enumerate(ASKED):
        one = (known.layer_us + known.step_us) / FOUND.model_us[place, 0]
        more = [s - a for s, a in zip(served[each.batch], alone[each.batch], strict=True)]
        assert more == pytest.approx([one, one, 2 * one, 3 * one])


def test_a_head_without_a_kernel_is_refused() -> None:
    """What runs the model's attention may have no kernel for the head's."""
    latent = [replace(ASKED[0], attention=backend("vllm-mla==0.33.0"))]
    with pytest.raises(EvidenceError, match="what the head qwen3_8b takes to draft is not known"):
        head_shares(FOUND, latent, THIRD, BLIND, {})
