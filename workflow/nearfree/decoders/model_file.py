"""All that a model's files say, understood or not: its forward, its precision, what it stores."""

from collections.abc import Sequence
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
from nearfree.decoders.gguf_parts import gguf_parts
from nearfree.decoders.holding import Heads
from nearfree.decoders.keys import Keys, read_object
from nearfree.decoders.positions import allowed_positions
from nearfree.decoders.precision import StoredPrecision, read_precision
from nearfree.decoders.snapshots import snapshot_of
from nearfree.decoders.stored_parts import (
    Part,
    Weights,
    checkpoint_parts,
    groups_of,
    precision_of,
    weights_of,
)
from nearfree.decoders.text_part import text_part
from nearfree.decoders.weights import CacheLayer, Stored, names_own_layer, stored
from nearfree.errors import Refusal, Refusals
from nearfree.gguf.reader import is_gguf, read_header


class ModelFile(Struct, frozen=True, kw_only=True):
    """A model as its files describe it.

    `decoder` is None where its forward is not understood; `weights`, `cache` and `precision` are
    empty where it is not known what it stores, or in what. `refusals` say why. `mixed` says which
    kinds of matrices have several formats, of which `precision` has that of most elements. `widest`
    is the most elements that a token's FFN or attention makes, in which routed experts count
    `top_k` times. `groups` are outputs and inputs that share a scale, by kind, where several do.
    Where weights are in formats that no forward here has, such as Q4_K, `precision` is None, and
    `unsaid` the format of what is never quantised and of the cache; `mixed` says why. `positions`
    is how many of them, cached and new, a request may have; None where the files do not say it.
    `drafts` says whether it has a layer of its own for further tokens, and `drafts_plain` whether
    its files leave that out of what they quantise. `method` is the
    `quant_method`, empty without one, and `static` whether scales of what enters products are
    stored, None where that is not known. `model_type` is that of its text part, empty where nothing
    is known. `architectures` are the names of its class, of the whole model, empty where the file
    does not say them.
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
    positions: int | None = None
    drafts: bool = False
    drafts_plain: bool = False
    method: str = ""
    static: bool | None = None
    architectures: tuple[str, ...] = ()

    @property
    def revision(self) -> str | None:
        """The commit of a snapshot in Hugging Face's cache, None of any other file."""
        snapshot = snapshot_of(Path(self.file))
        return snapshot.commit if snapshot else None

    @property
    def around(self) -> Precision | None:
        """Its precision, or one whose cache and plain numbers alone are the file's."""
        return self.precision or (uniform(self.unsaid) if self.unsaid else None)

    @property
    def main(self) -> str:
        """The kind of matrices that holds most weights: experts, or the FFN."""
        return "experts" if any(each.kind == "experts" for each in self.weights) else "ffn"

    def stored(self, precision: Precision | None) -> tuple[Weights, ...]:
        """Return the weights with their bytes in a precision, or as the files say if None."""
        sizes = (self._size(each, precision) for each in self.weights)
        return tuple(
            structs.replace(each, size_bytes=size)
            for each, size in zip(self.weights, sizes, strict=True)
        )

    def _size(self, each: Weights, precision: Precision | None) -> float:
        own, kind = self.precision, each.kind
        if precision is None or precision == own:
            return each.size_bytes
        if kind not in QUANTISED:
            was = ELEMENT_BYTES[own.plain] if own else each.size_bytes / each.elements
            return each.size_bytes * ELEMENT_BYTES[precision.plain] / was
        format_ = getattr(precision, kind).weights
        if own and getattr(own, kind).weights == format_:
            return each.size_bytes
        return each.elements * ELEMENT_BYTES[format_]


def find_model_file(config_folder: Path, model: str) -> ModelFile:
    """Return a model by its name or path; the errors are those of `find_file` and `read_object`."""
    return read_model_file(find_file(config_folder, model))


def find_drafter_file(config_folder: Path, model: str) -> ModelFile:
    """Return what drafts by its name or path: a model, or a head, of which the forward alone.

    Raises
    ------
    ConfigError
        As `find_file`, and as `read_drafter` of a head.
    """
    path = find_file(config_folder, model)
    file = config_file(path)
    if is_gguf(file) or not is_head(drafter_keys(file)):
        return read_model_file(path)
    return ModelFile(name=file_name(file), file=str(file), decoder=read_drafter(path))


def read_model_file(path: Path) -> ModelFile:
    """Return all that a model's files say; what is not understood is in `refusals`.

    Parameters
    ----------
    path
        The config.json, or the folder that holds it; hf_quant_config.json beside it is read, too.
        Or a GGUF file, or the folder that holds one and no config.json.

    Raises
    ------
    ConfigError
        A file is not there, or is neither a JSON object nor a GGUF file.
    """
    file, found = config_file(path), Refusals()
    if is_gguf(file):
        return _read_gguf(file)
    decoder = said = kept = None
    shape = dict[str, Any]()
    with found.collect():
        decoder = read_decoder(path)
    with found.collect():
        said = read_precision(path)
        found.found += said.refusals
    sizes, told = Refusals(), {each.key for each in found.found} & {"model_type"}
    with sizes.collect():
        kept = stored(path)
        shape = _shape(kept, text_part(file).keys)
    found.found += [each for each in sizes.found if each.key not in told]
    known = ModelFile(name=file_name(file), file=str(file), decoder=decoder)
    with found.collect():
        names = Keys(file, read_object(file)).list_of("architectures", str)
        known = structs.replace(known, architectures=tuple(names))
    if said is not None:
        known = structs.replace(known, method=said.quantised.method, static=said.quantised.static)
    if shape:
        keys = text_part(file).keys
        known = structs.replace(
            known, positions=allowed_positions(keys), drafts=names_own_layer(keys), **shape
        )
    if kept is not None and said is not None and shape:
        known = structs.replace(known, drafts_plain=said.drafts_plain(known.layers))
        parts, unknown = list[Part](), Refusals()
        for matrix in kept.weights:
            with unknown.collect():
                parts += checkpoint_parts(matrix, said)
        found.found += unknown.found
        if not unknown.found:
            known = _with_parts(known, parts, said)
    return structs.replace(known, refusals=tuple(dict.fromkeys(found.found)))


def _with_parts(known: ModelFile, parts: Sequence[Part], said: StoredPrecision) -> ModelFile:
    precision, mixed = precision_of(parts, said)
    return structs.replace(
        known,
        weights=weights_of(parts),
        precision=precision,
        mixed=mixed,
        groups=groups_of(parts),
    )


def _read_gguf(file: Path) -> ModelFile:
    """Return what a GGUF file says: its weights in the bytes that its tensors take."""
    header, found = read_header(file), Refusals()
    decoder = kept = None
    shape = dict[str, Any]()
    with found.collect():
        decoder = read_decoder(file)
    with found.collect():
        kept = stored(file)
        shape = _shape(kept, text_part(file).keys)
    known = ModelFile(name=file_name(file), file=str(file), decoder=decoder)
    if kept is not None and shape:
        length = header.metadata.get(f"{header.architecture}.context_length")
        positions = length if isinstance(length, int) and length > 0 else None
        drafts = bool(header.metadata.get(f"{header.architecture}.nextn_predict_layers"))
        known = structs.replace(known, positions=positions, drafts=drafts, **shape)
        with found.collect():
            said, parts, unsaid = gguf_parts(header, kept)
            known = _with_parts(known, parts, said)
            if unsaid:
                known = structs.replace(
                    known, precision=None, groups=(), mixed=unsaid, unsaid=said.plain
                )
    return structs.replace(known, refusals=tuple(dict.fromkeys(found.found)))


_TOP_K = (
    "num_experts_per_tok", "moe_topk", "moe_k", "top_k_experts", "moe_top_k",
    "num_experts_per_token",
)  # fmt: skip


def _top_k(keys: Keys) -> int:
    """Return how many experts a token goes to, where a file says it in a known way; else all.

    Of a model without experts it may say 0.
    """
    named = [key for key in _TOP_K if keys.has(key)]
    return (keys.whole(named[0], least=0) if named else 0) or 1 << 20


def _heads(keys: Keys, cache: Sequence[CacheLayer]) -> Heads:
    """Return a model's heads of queries, where its file says them in the usual way, and of keys."""
    queries = "num_attention_heads"
    of = keys.whole(queries) if keys.has(queries) else 1
    return Heads(of, max((each.heads for each in cache), default=1))


def _shape(stored: Stored, keys: Keys) -> dict[str, Any]:
    """Return what memory asks of a model's shape."""
    top_k, made = _top_k(keys), dict[tuple[str, int], int]()
    for matrix in stored.weights:
        times = min(matrix.copies, top_k) if matrix.kind == "experts" else matrix.copies
        for layer in matrix.layers:
            at = matrix.kind, layer
            made[at] = made.get(at, 0) + times * matrix.outputs
    embedding = next(each for each in stored.weights if each.kind == "embedding")
    return {
        "model_type": stored.model_type,
        "cache": stored.cache,
        "d_model": embedding.inputs,
        "vocabulary": embedding.outputs,
        "widest": max(made.values(), default=0),
        "heads": _heads(keys, stored.cache),
        "experts": max((m.copies for m in stored.weights if m.kind == "experts"), default=1),
        "layers": 1 + max(max(m.layers, default=0) for m in stored.weights),
        "notes": stored.notes,
    }
