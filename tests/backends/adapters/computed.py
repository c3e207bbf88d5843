"""Results of GPU libraries, by their definition on the CPU, from the arguments of a bound call.

Each function asserts the library's conditions on tensors, and reads only what the call gives.
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
    positions = torch.arange(length - n, length)[:, None]
    places = torch.arange(length)
    hidden = (places > positions) & causal
    if left >= 0:
        hidden |= places < positions - left
    keys, values = (cached.double().repeat_interleave(group, 1) for cached in (keys, values))
    scores = torch.einsum("nhd,thd->hnt", queries.double(), keys) / queries.shape[-1] ** 0.5
    shares = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    return torch.einsum("hnt,thd->nhd", shares, values).to(queries.dtype)


def flash_2(bound: BoundArguments) -> Tensor:
    """Return what `flash_attn_with_kvcache` does: [b, N, heads, head_dim]."""
    arguments = bound.arguments
    left, right = arguments.get("window_size", (-1, -1))
    assert right == (-1 if left < 0 else 0)
    tensors = arguments["q"], arguments["k_cache"], arguments["v_cache"]
    return _cached(*tensors, arguments["cache_seqlens"], causal=arguments["causal"], left=left)


def flash_3(arguments: dict[str, Any]) -> Tensor:
    """Return what `flash_attn_3::fwd` does of a cache: [b, N, heads, head_dim]."""
    left = arguments.get("window_size_left", -1)
    assert arguments.get("window_size_right", -1) == (-1 if left < 0 else 0)
    tensors = arguments["q"], arguments["k"], arguments["v"]
    return _cached(*tensors, arguments["seqused_k"], causal=arguments["is_causal"], left=left)


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
    outputs = []
    for request, last_page_length in enumerate(plan["paged_kv_last_page_len"].tolist()):
        request_pages = plan["paged_kv_indices"][firsts[request] : firsts[request + 1]]
        length = (len(request_pages) - 1) * size + last_page_length
        keys_and_values = (
            cached[request_pages.long()].flatten(0, 1)[:length] for cached in (pages, values)
        )
        rows = queries[ends[request] : ends[request + 1]]
        left = plan.get("window_left", -1)
        outputs.append(attended(rows, *keys_and_values, causal=plan["causal"], left=left))
    return torch.cat(outputs)


def flashinfer_latent(plan: dict[str, Any], arguments: dict[str, Any]) -> Tensor:
    """Return what paged latent attention does as it was planned: [rows, heads, latent]."""
    queries, rotated = arguments["q_nope"], arguments["q_pe"]
    pages, keys = arguments["ckv_cache"], arguments["kpe_cache"]
    size, heads = plan["page_size"], plan["num_heads"]
    assert queries.shape[1:] == (heads, plan["head_dim_ckv"])
    assert rotated.shape[1:] == (heads, plan["head_dim_kpe"])
    assert (pages.shape[1], keys.shape[1]) == (size, size)
    assert queries.dtype == plan["q_data_type"]
    assert pages.dtype == plan["kv_data_type"]
    assert all(tensor.stride(-1) == 1 for tensor in (queries, rotated, pages, keys))
    ends, firsts = plan["qo_indptr"].tolist(), plan["kv_indptr"].tolist()
    assert all(plan[name].dtype == torch.int32 for name in ("qo_indptr", "kv_indices"))
    outputs = []
    for request, length in enumerate(plan["kv_len_arr"].tolist()):
        request_pages = plan["kv_indices"][firsts[request] : firsts[request + 1]].long()
        assert (len(request_pages) - 1) * size < length <= len(request_pages) * size
        values = pages[request_pages].flatten(0, 1)[:length].double()
        cached = torch.cat([values, keys[request_pages].flatten(0, 1)[:length].double()], -1)
        rows = torch.cat([queries, rotated], -1)[ends[request] : ends[request + 1]].double()
        scores = torch.einsum("nhw,tw->nht", rows, cached) * plan["sm_scale"]
        if plan["causal"]:
            places = torch.arange(length)
            own_places = torch.arange(length - len(rows), length)[:, None, None]
            scores = scores.masked_fill(places > own_places, float("-inf"))
        outputs.append(torch.einsum("nht,tc->nhc", scores.softmax(-1), values))
    return torch.cat(outputs).to(queries.dtype)


def fused(bound: BoundArguments) -> Tensor:
    """Return what `fused_experts` of an engine does, token by token: [tokens, d_model]."""
    arguments = dict(bound.arguments)
    if "topk_output" in arguments:
        arguments["topk_weights"], arguments["topk_ids"], _ = arguments["topk_output"]
    rows, gate_up, down = arguments["hidden_states"], arguments["w1"], arguments["w2"]
    shares, ids = arguments["topk_weights"], arguments["topk_ids"]
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
