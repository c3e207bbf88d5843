"""The tensors of a GGUF file as the weights of its model: none missing, none too many.

Source: names of llama.cpp v0.5.0, src/llama-arch.cpp (LLM_TENSOR_NAMES), shapes of
src/models/NAME.cpp (load_arch_tensors).
"""

from typing import NamedTuple

from nearfree.decoders.weights import Matrix, Stored
from nearfree.errors import Refusal, RefusedError
from nearfree.gguf.header import GgufHeader, Tensor

_OUTSIDE = {
    "embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output",
    "embedding_norm": "token_embd_norm",
}  # fmt: skip
_INSIDE = {
    "input_layernorm": ("attn_norm",),
    "post_attention_layernorm": ("ffn_norm",),
    "pre_feedforward_layernorm": ("ffn_norm",),
    "post_feedforward_layernorm": ("post_ffw_norm",),
    "self_attn.q_proj": ("attn_q",),
    "self_attn.k_proj": ("attn_k",),
    "self_attn.v_proj": ("attn_v",),
    "self_attn.qkv_proj": ("attn_qkv",),
    "self_attn.o_proj": ("attn_output",),
    "self_attn.q_norm": ("attn_q_norm",),
    "self_attn.k_norm": ("attn_k_norm",),
    "self_attn.sinks": ("attn_sinks",),
    "mlp.gate_proj": ("ffn_gate",),
    "mlp.up_proj": ("ffn_up",),
    "mlp.gate_up_proj": ("ffn_up",),
    "mlp.down_proj": ("ffn_down",),
    "mlp.gate": ("ffn_gate_inp",),
    "mlp.router": ("ffn_gate_inp",),
    "mlp.experts.*.gate_proj": ("ffn_gate_exps",),
    "mlp.experts.*.up_proj": ("ffn_up_exps",),
    "mlp.experts.*.down_proj": ("ffn_down_exps",),
    "mlp.experts.gate_up_proj": ("ffn_gate_exps", "ffn_up_exps"),
    "mlp.experts.down_proj": ("ffn_down_exps",),
    "mlp.shared_expert.gate_proj": ("ffn_gate_shexp",),
    "mlp.shared_expert.up_proj": ("ffn_up_shexp",),
    "mlp.shared_expert.down_proj": ("ffn_down_shexp",),
    "mlp.shared_expert_gate": ("ffn_gate_inp_shexp",),
    "operator_norm": ("attn_norm",),
    "ffn_norm": ("ffn_norm",),
    "conv.in_proj": ("shortconv.in_proj",),
    "conv.conv": ("shortconv.conv",),
    "conv.out_proj": ("shortconv.out_proj",),
    "self_attn.out_proj": ("attn_output",),
    "self_attn.q_layernorm": ("attn_q_norm",),
    "self_attn.k_layernorm": ("attn_k_norm",),
    "feed_forward.w1": ("ffn_gate",),
    "feed_forward.w3": ("ffn_up",),
    "feed_forward.w2": ("ffn_down",),
    "feed_forward.gate": ("ffn_gate_inp",),
    "feed_forward.experts.*.w1": ("ffn_gate_exps",),
    "feed_forward.experts.*.w3": ("ffn_up_exps",),
    "feed_forward.experts.*.w2": ("ffn_down_exps",),
    "block_sparse_moe.gate": ("ffn_gate_inp",),
    "block_sparse_moe.experts.*.w1": ("ffn_gate_exps",),
    "block_sparse_moe.experts.*.w3": ("ffn_up_exps",),
    "block_sparse_moe.experts.*.w2": ("ffn_down_exps",),
}
"""What a weight of a layer is called in GGUF files: one tensor, or several that make it."""
_AFTER = {
    **dict.fromkeys(("gemma2", "gemma3_text", "gpt_oss"), "post_attention_norm"),
}
"""What the norm behind attention is called by model types of which it is not the FFN's."""
_TABLES = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Factors of rotations, which no config.json counts as weights."""
_CORRECTION = "exp_probs_b.bias"
"""By what a router corrects scores: a buffer of the class, which no config.json counts either."""
_MOST_NAMED = 4
_ANEW = "Convert the model anew with a release of llama.cpp that is read here"


class Held(NamedTuple):
    """A tensor of a file, and the weights of the model that it holds."""

    matrix: Matrix
    tensor: Tensor


def tensor_names(model_type: str, name: str, layer: int | None = None) -> tuple[str, ...]:
    """Return what GGUF files call a weight, none if they have no name for it.

    Parameters
    ----------
    model_type
        As config.json has it.
    name
        As `Matrix` has it, such as `model.layers.*.self_attn.q_proj`, a bias with `.bias` behind.
    layer
        Its layer, None outside of layers.
    """
    ending = "bias" if name.endswith(".bias") else "weight"
    inner = name.removesuffix(".bias").removeprefix("model.")
    if layer is None:
        return (f"{_OUTSIDE[inner]}.{ending}",) if inner in _OUTSIDE else ()
    part = inner.removeprefix("layers.*.")
    parts = _INSIDE.get(part, ())
    if part == "post_attention_layernorm" and model_type in _AFTER:
        parts = (_AFTER[model_type],)
    return tuple(f"blk.{layer}.{each}.{ending}" for each in parts)


def held_tensors(header: GgufHeader, kept: Stored) -> tuple[Held, ...]:
    """Return the tensors of a file with the weights that its metadata say.

    Raises
    ------
    RefusedError
        Tensors are missing, have other shapes than the metadata say, or are none of the model's:
        with every reason.
    """
    left, found, reasons = dict(header.by_name), list[Held](), dict[str, str]()
    for matrix in kept.weights:
        for layer in matrix.layers or (None,):
            names = tensor_names(kept.model_type, matrix.name, layer)
            tensors = [left.pop(name) for name in names if name in left]
            if not names or len(tensors) < len(names):
                _note(reasons, matrix.name, f"{' and '.join(names) or matrix.name} is missing")
            elif not _fits(matrix, tensors):
                _note(reasons, matrix.name, _misfit(matrix, tensors))
            found += [Held(matrix, tensor) for tensor in tensors]
    beside = [f"blk.{layer}.{_CORRECTION}" for layer in range(_layers(kept))]
    for table in (*_TABLES, *beside):
        if table in left:
            found.append(_table(left.pop(table)))
    if left:
        more = f" and {len(left) - _MOST_NAMED} more" if len(left) > _MOST_NAMED else ""
        named = ", ".join(list(left)[:_MOST_NAMED])
        _note(reasons, "", f"has tensors that no {kept.model_type} has: {named}{more}")
    if reasons:
        raise RefusedError([Refusal(header.file, "", why, _ANEW) for why in reasons.values()])
    return tuple(found)


def _layers(kept: Stored) -> int:
    return 1 + max(max(each.layers, default=-1) for each in kept.weights)


def _note(reasons: dict[str, str], name: str, why: str) -> None:
    """Keep the first reason of a weight: what is wrong in one layer mostly is so in all."""
    reasons.setdefault(name, why)


def _shape(matrix: Matrix) -> tuple[int, ...]:
    """Return what shape files have for a weight, the innermost size first, no 1 at the end."""
    sizes = (matrix.outputs,) if matrix.inputs == 1 else (matrix.inputs, matrix.outputs)
    return _stripped((*sizes, matrix.copies))


def _stripped(sizes: tuple[int, ...]) -> tuple[int, ...]:
    while len(sizes) > 1 and sizes[-1] == 1:
        sizes = sizes[:-1]
    return sizes


def _fits(matrix: Matrix, tensors: list[Tensor]) -> bool:
    """Return whether tensors are a weight; of several, the outputs stand behind one another."""
    first = tensors[0].dims
    if len(tensors) == 1:
        return _stripped(first) == _shape(matrix)
    at = 0 if matrix.inputs == 1 else 1
    alike = {(*each.dims[:at], *each.dims[at + 1 :]) for each in tensors}
    if len(alike) > 1 or len(first) <= at:
        return False
    outputs = sum(each.dims[at] for each in tensors)
    return _stripped((*first[:at], outputs, *first[at + 1 :])) == _shape(matrix)


def _misfit(matrix: Matrix, tensors: list[Tensor]) -> str:
    names = " and ".join(each.name for each in tensors)
    has = " and ".join(" x ".join(map(str, each.dims)) for each in tensors)
    said = " x ".join(map(str, _shape(matrix)))
    return f"{names} has {has} elements, and the metadata say {said}"


def _table(tensor: Tensor) -> Held:
    matrix = Matrix(name=tensor.name, kind="other", inputs=1, outputs=tensor.elements)
    return Held(matrix, tensor)
