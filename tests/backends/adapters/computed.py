"""What GPU libraries compute, by its definition on the CPU, from the arguments of a bound call.

Each asserts what the library asks of its tensors, and reads no more than the call tells it to.
"""

from inspect import BoundArguments
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def attended(queries: Tensor, keys: Tensor, values: Tensor, *, causal: bool, left: int) -> Tensor:
    """Return a request's attention [N, heads, head_dim] over keys [T, kv_heads, head_dim].

    The last query stands at the last key. A causal query sees no key after its own; it sees `left`
    keys before it, all of them if negative.
    """
    n, length, group = len(queries), len(keys), queries.shape[1] // keys.shape[1]
    own = torch.arange(length - n, length)[:, None]
    places = torch.arange(length)
    hidden = (places > own) & causal
    if left >= 0:
        hidden |= places < own - left
    keys, values = (each.double().repeat_interleave(group, 1) for each in (keys, values))
    scores = torch.einsum("nhd,thd->hnt", queries.double(), keys) / queries.shape[-1] ** 0.5
    shares = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    return torch.einsum("hnt,thd->nhd", shares, values).to(queries.dtype)


def flash_2(bound: BoundArguments) -> Tensor:
    """Return what `flash_attn_with_kvcache` does: [b, N, heads, head_dim]."""
    given = bound.arguments
    left, right = given.get("window_size", (-1, -1))
    assert right == (-1 if left < 0 else 0)
    tensors = given["q"], given["k_cache"], given["v_cache"]
    return _cached(*tensors, given["cache_seqlens"], causal=given["causal"], left=left)


def flash_3(given: dict[str, Any]) -> Tensor:
    """Return what `flash_attn_3::fwd` does of a cache: [b, N, heads, head_dim]."""
    left = given.get("window_size_left", -1)
    assert given.get("window_size_right", -1) == (-1 if left < 0 else 0)
    tensors = given["q"], given["k"], given["v"]
    return _cached(*tensors, given["seqused_k"], causal=given["is_causal"], left=left)


def _cached(
    queries: Tensor, keys: Tensor, values: Tensor, lengths: Tensor, *, causal: bool, left: int
) -> Tensor:
    assert lengths.dtype == torch.int32
    assert queries.shape[-1] == keys.shape[-1] == values.shape[-1]
    assert queries.stride(-1) == 1
    assert keys.is_contiguous()
    assert values.is_contiguous()
    parts = zip(queries, keys, values, lengths.tolist(), strict=True)
    return torch.stack(
        [attended(q, k[:length], v[:length], causal=causal, left=left) for q, k, v, length in parts]
    )


def flashinfer(planned: BoundArguments, bound: BoundArguments) -> Tensor:
    """Return what a paged prefill does as it was planned: [rows, heads, head_dim]."""
    plan, queries = planned.arguments, bound.arguments["q"]
    pages, values = bound.arguments["paged_kv_cache"]
    size = plan["page_size"]
    assert pages.shape == values.shape
    assert pages.shape[1:] == (size, plan["num_kv_heads"], queries.shape[2])
    assert queries.shape[1] == plan["num_qo_heads"]
    assert queries.dtype == plan["q_data_type"] == plan["kv_data_type"]
    assert queries.is_contiguous()
    ends, firsts = plan["qo_indptr"].tolist(), plan["paged_kv_indptr"].tolist()
    assert len(queries) == ends[-1]
    found = []
    for request, last in enumerate(plan["paged_kv_last_page_len"].tolist()):
        own = plan["paged_kv_indices"][firsts[request] : firsts[request + 1]]
        length = (len(own) - 1) * size + last
        keys_and_values = (each[own.long()].flatten(0, 1)[:length] for each in (pages, values))
        rows = queries[ends[request] : ends[request + 1]]
        left = plan.get("window_left", -1)
        found.append(attended(rows, *keys_and_values, causal=plan["causal"], left=left))
    return torch.cat(found)


def flashinfer_latent(plan: dict[str, Any], given: dict[str, Any]) -> Tensor:
    """Return what paged latent attention does as it was planned: [rows, heads, latent]."""
    queries, rotated = given["q_nope"], given["q_pe"]
    pages, keys = given["ckv_cache"], given["kpe_cache"]
    size, heads = plan["page_size"], plan["num_heads"]
    assert queries.shape[1:] == (heads, plan["head_dim_ckv"])
    assert rotated.shape[1:] == (heads, plan["head_dim_kpe"])
    assert (pages.shape[1], keys.shape[1]) == (size, size)
    assert queries.dtype == plan["q_data_type"]
    assert pages.dtype == plan["kv_data_type"]
    assert all(each.stride(-1) == 1 for each in (queries, rotated, pages, keys))
    ends, firsts = plan["qo_indptr"].tolist(), plan["kv_indptr"].tolist()
    assert all(plan[each].dtype == torch.int32 for each in ("qo_indptr", "kv_indices"))
    found = []
    for request, length in enumerate(plan["kv_len_arr"].tolist()):
        own = plan["kv_indices"][firsts[request] : firsts[request + 1]].long()
        assert (len(own) - 1) * size < length <= len(own) * size
        values = pages[own].flatten(0, 1)[:length].double()
        wide = torch.cat([values, keys[own].flatten(0, 1)[:length].double()], -1)
        rows = torch.cat([queries, rotated], -1)[ends[request] : ends[request + 1]].double()
        scores = torch.einsum("nhw,tw->nht", rows, wide) * plan["sm_scale"]
        if plan["causal"]:
            places = torch.arange(length)
            own_places = torch.arange(length - len(rows), length)[:, None, None]
            scores = scores.masked_fill(places > own_places, float("-inf"))
        found.append(torch.einsum("nht,tc->nhc", scores.softmax(-1), values))
    return torch.cat(found).to(queries.dtype)


def fused(bound: BoundArguments) -> Tensor:
    """Return what `fused_experts` of an engine does, token by token: [tokens, d_model]."""
    given = dict(bound.arguments)
    if "topk_output" in given:
        given["topk_weights"], given["topk_ids"], _ = given["topk_output"]
    rows, gate_up, down = given["hidden_states"], given["w1"], given["w2"]
    shares, ids = given["topk_weights"], given["topk_ids"]
    assert rows.is_contiguous()
    assert gate_up.is_contiguous()
    assert down.is_contiguous()
    assert shares.shape == ids.shape
    assert len(ids) == len(rows)
    assert (shares.dtype, ids.dtype) == (torch.float32, torch.int32)
    out = torch.zeros_like(rows, dtype=torch.float64)
    for token, (experts, weights) in enumerate(zip(ids.tolist(), shares.tolist(), strict=True)):
        for expert, share in zip(experts, weights, strict=True):
            gate, up = (gate_up[expert].double() @ rows[token].double()).chunk(2)
            out[token] += share * (down[expert].double() @ (functional.silu(gate) * up))
    return out.to(rows.dtype)
