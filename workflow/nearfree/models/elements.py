"""The weights that a decoder's forward holds, in elements and bytes, counted from its shape."""

from nearfree.decoders.attention_kinds import Grouped, Latent, Run, runs
from nearfree.decoders.decoder import Decoder
from nearfree.decoders.details import Details
from nearfree.models.activations import FLOAT32_BYTES, moe_of


def weight_bytes(decoder: Decoder, details: Details, size: int) -> int:
    """Return the bytes of all weights, `size` an element, and of what is made of them once.

    That are routers of sigmoids in float32, norms that multiply by one more than their weights, and
    the matrices by which a latent is widened, apart for keys and values.
    """
    form, experts, d_model = details.form or None, decoder.experts, decoder.d_model
    norms = _norms(decoder, details)
    elements = (2 - details.tied) * decoder.vocabulary * d_model + norms
    elements += decoder.dense_layers * 3 * d_model * (decoder.d_ff or 0)
    for kind in runs(decoder.attention):
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
        return elements * size
    rule, count = details.router, experts.experts
    router = count * (d_model + rule.expert_bias)
    ffn = 3 * d_model * (count * experts.d_ff + experts.shared_d_ff)
    layer = router + ffn + d_model * details.shared_gate + count * bool(rule.logit_bias)
    if form and form.expert_biases:
        layer += count * (2 * experts.d_ff + d_model)
    own = router * FLOAT32_BYTES * (rule.scores == "sigmoid" and size < FLOAT32_BYTES)
    if decoder.beside:  # three norms, the router's factors as they are and divided, and shares'
        layer += 5 * d_model + count
        own += count * FLOAT32_BYTES * (size < FLOAT32_BYTES)
    return (elements + moe_layers * layer) * size + moe_layers * own


def _norms(decoder: Decoder, details: Details) -> int:
    """Return the elements of norms over the model's width, and of those of heads."""
    four = bool(details.form and details.form.four_norms)
    heads = sum(
        (1 if kind.shares else 2) * kind.head_dim * len(kind.layers)
        for kind in runs(decoder.attention)
        if isinstance(kind, Grouped) and details.qk_norm
    )
    return decoder.d_model * (1 + decoder.layers * (4 if four else 2)) + heads


def attention_elements(kind: Run, d_model: int, details: Details) -> int:
    """Return the elements of the attention of a layer, without norms of heads."""
    output = d_model * (kind.inputs + details.output_bias)
    if isinstance(kind, Latent):
        return output + _latent(kind, d_model, biased=details.qkv_bias)
    return output + kind.made * (d_model + details.qkv_bias) + kind.heads * kind.sinks


def _latent(kind: Latent, d_model: int, *, biased: bool) -> int:
    query, rank = kind.heads * (kind.nope_dim + kind.rope_dim), kind.query_rank
    into = (rank or 0) + kind.cached
    found = into * (d_model + biased) + query * (rank or d_model)
    found += kind.latent * (1 + 2 * kind.heads * (kind.nope_dim + kind.value_dim)) + (rank or 0)
    if kind.index_heads and kind.index_dim:
        found += kind.index_heads * kind.index_dim * (rank or 0)
        found += (kind.index_dim + kind.index_heads) * d_model + 2 * kind.index_dim
    return found
