"""The weights of a decoder's forward, in elements and bytes, computed from its shape."""

from nearfree.decoders.attention_kinds import Grouped, Latent, Runnable, runnable_kinds
from nearfree.decoders.decoder import Decoder
from nearfree.decoders.details import Details
from nearfree.models.activations import FLOAT32_BYTES, moe_of


def weight_bytes(decoder: Decoder, details: Details, element_bytes: int) -> int:
    """Return the bytes of all weights, and of the tensors that a forward derives from them once.

    The derived tensors are sigmoid routers in float32, norms that multiply by one plus their
    weights, and the separate matrices that expand a latent to keys and to values.
    """
    form, experts, d_model = details.form or None, decoder.experts, decoder.d_model
    norms = _norms(decoder, details)
    elements = (2 - details.tied) * decoder.vocabulary * d_model + norms
    elements += decoder.dense_layers * 3 * d_model * (decoder.d_ff or 0)
    for kind in runnable_kinds(decoder.attention):
        elements += len(kind.layers) * attention_elements(kind, d_model, details)
    if form and form.norms_from_one:
        elements += norms
    if decoder.layer_inputs:
        width, layers = decoder.layer_inputs, decoder.layers
        elements += layers * width * (decoder.vocabulary + 3 * d_model) + width + layers * d_model
    if form and form.layer_weight:
        elements += decoder.layers
    _, moe_layers = moe_of(decoder, details)
    if experts is None or details.router is None:
        return elements * element_bytes
    rule, count = details.router, experts.experts
    router = count * (d_model + rule.expert_bias)
    ffn = 3 * d_model * (count * experts.d_ff + experts.shared_d_ff)
    layer_elements = router + ffn + d_model * details.shared_gate + count * bool(rule.logit_bias)
    if form and form.expert_biases:
        layer_elements += count * (2 * experts.d_ff + d_model)
    derived_bytes = (
        router * FLOAT32_BYTES * (rule.scores == "sigmoid" and element_bytes < FLOAT32_BYTES)
    )
    if decoder.beside:  # three norms, two copies of the router's factors, and factors of weights
        layer_elements += 5 * d_model + count
        derived_bytes += count * FLOAT32_BYTES * (element_bytes < FLOAT32_BYTES)
    return (elements + moe_layers * layer_elements) * element_bytes + moe_layers * derived_bytes


def _norms(decoder: Decoder, details: Details) -> int:
    """Return the elements of norms over the model's width and over heads."""
    four_norms = bool(details.form and details.form.four_norms)
    head_norms = sum(
        (1 if kind.shares else 2) * kind.head_dim * len(kind.layers)
        for kind in runnable_kinds(decoder.attention)
        if isinstance(kind, Grouped) and details.qk_norm
    )
    return decoder.d_model * (1 + decoder.layers * (4 if four_norms else 2)) + head_norms


def attention_elements(kind: Runnable, d_model: int, details: Details) -> int:
    """Return the elements of a layer's attention, without norms over heads."""
    output = d_model * (kind.inputs + details.output_bias)
    if isinstance(kind, Latent):
        return output + _latent(kind, d_model, biased=details.qkv_bias)
    return output + kind.made * (d_model + details.qkv_bias) + kind.heads * kind.sinks


def _latent(kind: Latent, d_model: int, *, biased: bool) -> int:
    query_outputs, rank = kind.heads * (kind.nope_dim + kind.rope_dim), kind.query_rank
    down_outputs = (rank or 0) + kind.cached
    elements = down_outputs * (d_model + biased) + query_outputs * (rank or d_model)
    elements += kind.latent * (1 + 2 * kind.heads * (kind.nope_dim + kind.value_dim)) + (rank or 0)
    if kind.index_heads and kind.index_dim:
        elements += kind.index_heads * kind.index_dim * (rank or 0)
        elements += (kind.index_dim + kind.index_heads) * d_model + 2 * kind.index_dim
    return elements
