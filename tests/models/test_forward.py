"""A decoder's forward: its cache, its masks, its routings, its weights."""

from math import isclose
from pathlib import Path
from typing import Any

import pytest
import torch
from nearfree.core.routing_names import ModelRouting
from nearfree.decoders.ranks.modules import NO_LAPS
from nearfree.errors import ConfigError, EvidenceError
from nearfree.measure.prepare import kernel_names
from nearfree.models.attention import AttentionMask, Mask
from nearfree.models.forward import DecoderForward
from nearfree.models.layers import RandomWeights
from nearfree.models.moe import MoeFfn
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from models.given_weights import GivenWeights
from models.small import (
    BATCH,
    CONTEXT,
    KINDS,
    MOST,
    POSITIONS,
    document,
    error,
    make_forward,
    tokens,
)

pytestmark = pytest.mark.usefixtures("inference")

EXPERTS = [kind for kind in KINDS if "num_experts_per_tok" in document(kind)]
MASKS: tuple[Mask, ...] = ("causal", "block")
ROUTINGS: tuple[ModelRouting, ...] = ("router", "balanced", "skewed")


def moe_layer(forward: DecoderForward) -> MoeFfn:
    """Return the experts of the last MoE layer."""
    return [layer.ffn for layer in forward.layers if isinstance(layer.ffn, MoeFfn)][-1]


@pytest.mark.parametrize("kind", KINDS)
def test_every_family_gives_logits(tmp_path: Path, kind: str) -> None:
    """With random weights in 16 bits, logits are finite and of one scale."""
    forward = make_forward(tmp_path, document(kind), dtype=torch.bfloat16)
    for n in POSITIONS:
        out = forward.forward(tokens(n))
        assert (out.shape, out.dtype) == ((BATCH, n, 97), torch.bfloat16)
        assert 0.5 < float(out.double().std()) < 3.0


@pytest.mark.parametrize("mask", MASKS)
def test_only_new_positions_are_written(tmp_path: Path, mask: Mask) -> None:
    """A forward writes keys and values of its N positions only."""
    forward = make_forward(tmp_path, document("qwen3"), mask=mask)
    before = [cache.clone() for cache in (*forward.keys, *forward.values)]
    forward.forward(tokens(7))
    for old, new in zip(before, (*forward.keys, *forward.values), strict=True):
        assert new.shape == (BATCH, 2, CONTEXT + MOST, 16)
        changed = (old != new).any(-1).all(1).all(0)
        assert changed.nonzero().flatten().tolist() == list(range(CONTEXT, CONTEXT + 7))


@pytest.mark.parametrize("kind", KINDS)
def test_a_causal_position_sees_none_after_it(tmp_path: Path, kind: str) -> None:
    """Under the causal mask later positions do not change earlier logits."""
    forward = make_forward(tmp_path, document(kind))
    everything = forward.forward(tokens(33))
    for n in (1, 2, 7):
        assert error(forward.forward(tokens(33)[:, :n]), everything[:, :n]) < 1e-5


def test_a_position_in_a_block_sees_all_of_it(tmp_path: Path) -> None:
    """Under the block mask the last token changes the first logits, under causal not."""
    changed = tokens(7).clone()
    changed[:, -1] = (changed[:, -1] + 1) % 97
    for mask, differs in (("causal", False), ("block", True)):
        forward = make_forward(tmp_path, document("llama"), mask=mask)
        first = forward.forward(tokens(7))[:, 0]
        assert (error(forward.forward(changed)[:, 0], first) > 1e-3) == differs


@pytest.mark.parametrize("context", [0, 5, 23])
def test_a_window_reads_no_key_before_it(tmp_path: Path, context: int) -> None:
    """Keys before a window of 12 change nothing; those inside it do."""
    config = document("mistral", sliding_window=12)
    forward = make_forward(tmp_path, config, context=context)
    out = forward.forward(tokens(7))
    unseen = max(0, context + 1 - 12)
    for cache in (*forward.keys, *forward.values):
        cache[:, :, :unseen] = float("nan")
    assert forward.forward(tokens(7)).equal(out)
    if context:
        forward.keys[0][:, :, unseen] += 1.0
        assert error(forward.forward(tokens(7)), out) > 1e-5


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("kind", EXPERTS)
def test_padded_and_bare_rows_agree(tmp_path: Path, kind: str, routing: ModelRouting) -> None:
    """Both backends of experts give the same logits under every routing."""
    padded, bare = (
        make_forward(tmp_path, document(kind), routing=routing, moe=moe)
        for moe in ("torch_padded", "torch_grouped")
    )
    for n in POSITIONS:
        assert error(bare.forward(tokens(n)), padded.forward(tokens(n))) < 1e-5


@pytest.mark.parametrize("routing", ["balanced", "skewed"])
@pytest.mark.parametrize("kind", EXPERTS)
def test_controlled_routing_overrides_the_router(
    tmp_path: Path, kind: str, routing: ModelRouting
) -> None:
    """Token i goes to experts (i k + j) mod E, or all to the first k; each weighs 1 / k."""
    forward = make_forward(tmp_path, document(kind), routing=routing)
    ffn, experts = moe_layer(forward), forward._decoder.experts
    assert experts is not None
    hidden = torch.randn(BATCH, 7, 64)
    count, top_k = experts.experts, experts.top_k
    expected, inner = [], ffn._inner
    biases = [
        torch.zeros(count) if bias is None else bias
        for bias in (inner.gate_up_bias, inner.down_bias)
    ]
    for i, row in enumerate(hidden.flatten(0, 1)):
        start = i * top_k if routing == "balanced" else 0
        parts = []
        for j in range(top_k):
            at = (start + j) % count
            hidden_row = inner.gate(ffn._weights[0][at] @ row + biases[0][at])
            parts.append(ffn._weights[1][at] @ hidden_row + biases[1][at])
        expected.append(torch.stack(parts).mean(0))
    out = ffn.forward(hidden, NO_LAPS).flatten(0, 1)
    if ffn._shared is not None:
        out = out - ffn._gated(
            hidden.flatten(0, 1), ffn._shared.forward(hidden.flatten(0, 1), NO_LAPS)
        )
    assert error(out, torch.stack(expected)) < 1e-5


@pytest.mark.parametrize("routing", ROUTINGS)
def test_the_router_runs_under_every_routing(tmp_path: Path, routing: ModelRouting) -> None:
    """Under controlled routing the router's product still runs."""
    forward = make_forward(tmp_path, document("qwen3_moe"), routing=routing, moe="torch_grouped")
    with FlopCounterMode(display=False) as counter:
        forward.forward(tokens(7))
    flop = counter.get_flop_counts()["Global"]
    router, qkv, output, head = 3 * 16, 3 * 192, 3 * 128, 97
    assert flop[torch.ops.aten.mm] == 2 * BATCH * 7 * 64 * (router + qkv + output + head)


class Forwards:
    """Forwards of N random tokens, as a kernel has them."""

    def __init__(self, forward: DecoderForward) -> None:
        self._forward = forward

    def forward(self, n: int) -> Tensor:
        """Run one."""
        return self._forward.forward(tokens(n))


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_flash_kernel_runs(tmp_path: Path, dtype: torch.dtype, mask: Mask) -> None:
    """At every N torch runs the flash kernel that studies of attention run."""
    forward = Forwards(make_forward(tmp_path, document("qwen3"), dtype=dtype, mask=mask))
    for n in POSITIONS:
        names = kernel_names(forward, n, "cpu")
        assert "_scaled_dot_product_flash_attention_for_cpu" in names
        assert not {"bmm", "softmax", "_softmax", "_scaled_dot_product_attention_math"} & set(names)


def test_a_seed_gives_the_same_weights_and_cache() -> None:
    """Weights have variance 1 / in, norms 1, biases 0; a seed repeats them."""
    weight = RandomWeights(torch.float32, seed=5)("any.weight", (300, 400))
    again = RandomWeights(torch.float32, seed=5)
    assert weight.equal(again("other.weight", (300, 400)))
    assert isclose(float(weight.var()), 1 / 400, rel_tol=0.05)
    assert again("model.norm.weight", (4,)).tolist() == [1.0] * 4
    assert again("mlp.gate.expert_bias", (4,)).tolist() == [0.0] * 4


def test_a_forward_repeats_itself(tmp_path: Path) -> None:
    """The same seed and tokens give the same logits, in another object, too."""
    first, second = (make_forward(tmp_path, document("llada2_moe")) for _ in range(2))
    out = first.forward(tokens(7))
    assert first.forward(tokens(7)).equal(out)
    assert second.forward(tokens(7)).equal(out)


@pytest.mark.parametrize("shape", [(BATCH, 0), (BATCH, MOST + 1), (BATCH + 1, 1), (BATCH,)])
def test_tokens_of_another_shape_are_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """A forward takes b requests of 1 to `most` positions; others are refused."""
    forward = make_forward(tmp_path, document("llama"))
    with pytest.raises(ConfigError, match="tokens of shape"):
        forward.forward(torch.zeros(shape, dtype=torch.int64))


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({}, "no weight model.embed"),
        ({"model.embed_tokens.weight": torch.ones(2)}, "has the shape"),
    ],
)
def test_weights_of_another_model_are_refused(
    tmp_path: Path, weights: dict[str, Any], message: str
) -> None:
    """A missing weight and one of another shape are refused by name."""
    with pytest.raises(ConfigError, match=message):
        make_forward(tmp_path, document("llama"), weights=GivenWeights(weights, torch.float32))


def test_what_is_not_run_is_refused(tmp_path: Path) -> None:
    """A block mask with a window, and an unknown backend of experts, are refused."""
    with pytest.raises(EvidenceError, match="on 'trt'") as caught:
        make_forward(tmp_path, document("mixtral"), moe="trt")
    assert "torch_padded, torch_grouped, vllm, sglang" in caught.value.remedy
    with pytest.raises(EvidenceError, match="window"):
        AttentionMask("block", 8, 4)
