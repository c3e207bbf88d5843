"""A model as its files describe it: its forward, precision, weights and cache, as far as read."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from msgspec import UNSET, Struct, UnsetType, structs

from nearfree.core.precision import ELEMENT_BYTES, QUANTISED, Dtype, Precision, uniform
from nearfree.decoders.config_file import (
    config_file,
    file_name,
    find_file,
    read_decoder,
    read_drafter,
)
from nearfree.decoders.decoder import Decoder
from nearfree.decoders.draft_heads import drafter_keys, is_head
from nearfree.decoders.gguf_files.parts import gguf_parts
from nearfree.decoders.keys import Keys, read_object
from nearfree.decoders.layouts.cache import caches_of
from nearfree.decoders.layouts.pieces import OF_ATTENTION, CacheLayer, Kind
from nearfree.decoders.positions import Positions, allowed_positions
from nearfree.decoders.precision import read_precision
from nearfree.decoders.ranks.holding import Heads, Held
from nearfree.decoders.snapshots import snapshot_of
from nearfree.decoders.stored.parts import (
    Part,
    Weights,
    checkpoint_parts,
    groups_of,
    precision_of,
    weights_of,
)
from nearfree.decoders.stored.precision import StoredPrecision
from nearfree.decoders.text_part import text_part
from nearfree.decoders.weights import Stored, has_mtp_layer, stored
from nearfree.errors import Refusal, Refusals
from nearfree.gguf.reader import is_gguf, read_header


class ModelFile(Struct, frozen=True, kw_only=True):
    """A model as its files describe it.

    `decoder` is None if the forward is not read; `weights`, `cache` and `precision` are empty if
    the weights or their formats are not read. `refusals` give the reasons. `mixed` names the kinds
    of matrices that have several formats; `precision` then has the format of most elements.
    `widest` is the largest number of elements per token that the matrices of one kind make in one
    layer; routed experts count `top_k` times. `groups` are kinds of matrices with the numbers of
    outputs and inputs that share a scale. If weights are in formats without a forward here, such as
    Q4_K, `precision` is None, `unsaid` is the dtype of unquantised weights and of the cache, and
    `mixed` gives the reason. `positions` are the largest numbers of positions, cached and new, of a
    request, None without a shape. `drafts` says whether the model has an MTP layer, and
    `drafts_plain` whether that layer is unquantised. `method` is the `quant_method`, empty without
    one. `static` says whether scales of activations are stored, None if that is not known.
    `model_type` is that of the text part, empty if nothing is read. `architectures` are the class
    names of the whole model, empty if the file does not give them.
    """

    name: str
    file: str
    model_type: str = ""
    decoder: Decoder | None = None
    precision: Precision | None = None
    weights: tuple[Weights, ...] = ()
    cache: tuple[CacheLayer, ...] = ()
    d_model: int = 0
    vocabulary: int = 0
    layers: int = 0
    widest: int = 0
    heads: Heads = Heads()
    experts: int = 1
    groups: tuple[tuple[str, int, int], ...] = ()
    notes: tuple[str, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    mixed: tuple[Refusal, ...] = ()
    unsaid: Dtype | UnsetType = UNSET
    positions: Positions | None = None
    drafts: bool = False
    drafts_plain: bool = False
    method: str = ""
    static: bool | None = None
    architectures: tuple[str, ...] = ()

    @property
    def revision(self) -> str | None:
        """The commit of a snapshot in Hugging Face's cache, None for any other file."""
        snapshot = snapshot_of(Path(self.file))
        return snapshot.commit if snapshot else None

    @property
    def around(self) -> Precision | None:
        """Its precision; or else a uniform one in the dtype of its cache and unquantised weights.

        It is None if neither is known.
        """
        return self.precision or (uniform(self.unsaid) if self.unsaid else None)

    @property
    def main(self) -> str:
        """The kind of matrices with most weights: experts if there are any, else the FFN."""
        return "experts" if any(group.kind == "experts" for group in self.weights) else "ffn"

    def stored(self, precision: Precision | None) -> tuple[Weights, ...]:
        """Return the weights with their bytes in a precision; if None, with those of the files."""
        return tuple(
            structs.replace(weights, size_bytes=self._size_bytes(weights, precision))
            for weights in self.weights
        )

    def _size_bytes(self, weights: Weights, precision: Precision | None) -> float:
        own, kind = self.precision, weights.kind
        if precision is None or precision == own:
            return weights.size_bytes
        if kind not in QUANTISED:
            own_element_bytes = (
                ELEMENT_BYTES[own.plain] if own else weights.size_bytes / weights.elements
            )
            return weights.size_bytes * ELEMENT_BYTES[precision.plain] / own_element_bytes
        format_ = getattr(precision, kind).weights
        if own and getattr(own, kind).weights == format_:
            return weights.size_bytes
        return weights.elements * ELEMENT_BYTES[format_]


def find_model_file(config_folder: Path, model: str) -> ModelFile:
    """Return a model by its name or path; it raises what `find_file` and `read_object` raise."""
    return read_model_file(find_file(config_folder, model))


def find_drafter_file(config_folder: Path, model: str) -> ModelFile:
    """Return a drafter by its name or path: a model, or for a head its forward and memory.

    The vocabulary of a head is that of the model that it drafts for; its forward has that of its
    own LM head.

    Raises
    ------
    ConfigError
        As for `find_file`, and for a head as for `read_drafter`.
    """
    path = find_file(config_folder, model)
    file = config_file(path)
    if is_gguf(file) or not is_head(keys := drafter_keys(file)):
        return read_model_file(path)
    decoder, vocabulary = read_drafter(path), keys.whole("vocab_size")
    return ModelFile(
        name=file_name(file),
        file=str(file),
        decoder=decoder,
        precision=uniform(decoder.dtype),
        weights=_head_weights(decoder),
        cache=tuple(chain.from_iterable(map(caches_of, decoder.attention))),
        vocabulary=vocabulary,
        layers=decoder.layers,
        heads=Heads(queries=decoder.heads, cached=decoder.kv_heads),
    )


def _head_weights(decoder: Decoder) -> tuple[Weights, ...]:
    """Return the weights of a head: its layer, its product of states, and an LM head of its own.

    The embedding is the target model's, and so is the LM head of EAGLE (vllm-project/vllm at
    00c4f22d, vllm/v1/spec_decode/llm_base_proposer.py, _maybe_share_embeddings: without pipeline
    stages, and where the checkpoint of the head has none or the same). Norms are left out.
    """
    states, d_model = decoder.states, decoder.d_model
    heads, entering = decoder.heads, decoder.entering
    elements: list[tuple[Kind, Held, int]] = [
        (OF_ATTENTION, "fused", entering * (heads + 2 * decoder.kv_heads) * decoder.head_dim),
        (OF_ATTENTION, "cut", heads * decoder.head_dim * d_model),
        ("ffn", "cut", sum(3 * d_model * d_ff * layers for d_ff, layers in decoder.dense_ffns)),
    ]
    if states:
        elements.append(("other", "whole", states.width * max(states.layers, 2) * d_model))
        if states.once:
            elements.append(("lm_head", "rows", d_model * decoder.vocabulary))
    size = ELEMENT_BYTES[decoder.dtype]
    return tuple(Weights(kind, count, count * size, how) for kind, how, count in elements)


def read_model_file(path: Path) -> ModelFile:
    """Return a model as its files describe it; what is not read of it is in `refusals`.

    Parameters
    ----------
    path
        The config.json, or the folder that holds it; hf_quant_config.json beside it is read, too.
        Or a GGUF file, or the folder that holds one and no config.json.

    Raises
    ------
    ConfigError
        A file is absent, or is neither a JSON object nor a GGUF file.
    """
    file, refusals = config_file(path), Refusals()
    if is_gguf(file):
        return _read_gguf(file)
    contents, shape = None, dict[str, Any]()
    decoder = refusals.read(lambda: read_decoder(path), None)
    precision = refusals.read(lambda: read_precision(path), None)
    refusals.found += precision.refusals if precision else ()
    weight_refusals = Refusals()
    with weight_refusals.collect():
        contents = stored(path)
        shape = _shape(contents, text_part(file).keys)
    unread = [why.key for why in refusals.found if why.key.rpartition(".")[2] == "model_type"]
    weight_refusals.found = [why for why in weight_refusals.found if why.key not in unread]
    refusals.found += weight_refusals.found
    model = ModelFile(name=file_name(file), file=str(file), decoder=decoder)
    with refusals.collect():
        names = Keys(file, read_object(file)).list_of("architectures", str)
        model = structs.replace(model, architectures=tuple(names))
    if precision is not None:
        quantised = precision.quantised
        model = structs.replace(model, method=quantised.method, static=quantised.static)
    if shape:
        keys = text_part(file).keys
        model = structs.replace(
            model, positions=allowed_positions(keys), drafts=has_mtp_layer(keys), **shape
        )
    if contents is not None and precision is not None and shape:
        model = structs.replace(model, drafts_plain=precision.drafts_plain(model.layers))
        parts, part_refusals = list[Part](), Refusals()
        for matrix in contents.weights:
            with part_refusals.collect():
                parts += checkpoint_parts(matrix, precision)
        refusals.found += part_refusals.found
        if not part_refusals.found:
            model = _with_parts(model, parts, precision)
    return structs.replace(model, refusals=tuple(dict.fromkeys(refusals.found)))


def _with_parts(model: ModelFile, parts: Sequence[Part], stored_as: StoredPrecision) -> ModelFile:
    """Return a model with the weights and the precision that its parts add up to."""
    precision, mixed = precision_of(parts, stored_as)
    return structs.replace(
        model,
        weights=weights_of(parts),
        precision=precision,
        mixed=mixed,
        groups=groups_of(parts),
    )


def _read_gguf(file: Path) -> ModelFile:
    """Return the model of a GGUF file; the bytes of its weights are those of the tensors."""
    header, refusals = read_header(file), Refusals()
    contents, shape = None, dict[str, Any]()
    decoder = refusals.read(lambda: read_decoder(file), None)
    with refusals.collect():
        contents = stored(file)
        shape = _shape(contents, text_part(file).keys)
    model = ModelFile(name=file_name(file), file=str(file), decoder=decoder)
    if contents is not None and shape:
        length = header.metadata.get(f"{header.architecture}.context_length")
        allowed = length if isinstance(length, int) and length > 0 else None
        drafts = bool(header.metadata.get(f"{header.architecture}.nextn_predict_layers"))
        positions = Positions(allowed, allowed, allowed)
        model = structs.replace(model, positions=positions, drafts=drafts, **shape)
        with refusals.collect():
            precision, parts, type_refusals = gguf_parts(header, contents)
            model = _with_parts(model, parts, precision)
            if type_refusals:
                model = structs.replace(
                    model, precision=None, groups=(), mixed=type_refusals, unsaid=precision.plain
                )
    return structs.replace(model, refusals=tuple(dict.fromkeys(refusals.found)))


_TOP_K = (
    "num_experts_per_tok", "moe_topk", "moe_k", "top_k_experts", "moe_top_k",
    "num_experts_per_token",
)  # fmt: skip


def _top_k(keys: Keys) -> int:
    """Return the experts per token where a file gives them under a known key; otherwise 2^20.

    That is more than any model has, so that all experts count. A file without experts may say 0.
    """
    present = [key for key in _TOP_K if keys.has(key)]
    return (keys.whole(present[0], least=0) if present else 0) or 1 << 20


def _heads(keys: Keys, cache: Sequence[CacheLayer]) -> Heads:
    """Return a model's query heads, 1 where its file has not the usual key, and its key heads."""
    key = "num_attention_heads"
    queries = keys.whole(key) if keys.has(key) else 1
    return Heads(queries, max((entry.heads for entry in cache), default=1))


def _shape(contents: Stored, keys: Keys) -> dict[str, Any]:
    """Return the fields of `ModelFile` that memory predictions need of a model's shape."""
    top_k, outputs_by_layer = _top_k(keys), dict[tuple[str, int], int]()
    for matrix in contents.weights:
        copies = min(matrix.copies, top_k) if matrix.kind == "experts" else matrix.copies
        for layer in matrix.layers:
            key = matrix.kind, layer
            outputs_by_layer[key] = outputs_by_layer.get(key, 0) + copies * matrix.outputs
    embedding = next(matrix for matrix in contents.weights if matrix.kind == "embedding")
    return {
        "model_type": contents.model_type,
        "cache": contents.cache,
        "d_model": embedding.inputs,
        "vocabulary": embedding.outputs,
        "widest": max(outputs_by_layer.values(), default=0),
        "heads": _heads(keys, contents.cache),
        "experts": max((m.copies for m in contents.weights if m.kind == "experts"), default=1),
        "layers": 1 + max(max(m.layers, default=0) for m in contents.weights),
        "notes": contents.notes,
    }
