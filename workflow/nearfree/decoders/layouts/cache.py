"""What a layer caches of a request, by its kind of attention."""

from msgspec import UNSET

from nearfree.decoders.attention_kinds import Compressed, Grouped, Kind
from nearfree.decoders.layouts.pieces import CacheLayer
from nearfree.decoders.state_kinds import Matrices, ShortConv

_SCALED, _SCALE_BYTES = 128, 4
_RECORD = 584 - 512
"""Bytes of a float8 key or entry beyond one byte for each of its 512 elements: 64 elements are in
16 bits, and the others share scales. Source: vllm 0.33.0,
vllm/models/deepseek_v4/attention.py:880-882; sglang 0.5.23,
sglang/srt/mem_cache/deepseek_v4_memory_pool.py:312-316."""


def caches_of(kind: Kind) -> tuple[CacheLayer, ...]:
    """Return what each layer of a kind caches of a request; nothing where it shares a cache.

    Each rank holds the whole key of the indexer that selects blocks, in the model's element type.
    """
    if isinstance(kind, Grouped):
        elements = kind.kv_heads * (kind.head_dim + kind.values)
        key_value_cache = CacheLayer(elements=elements, window=kind.most, heads=kind.kv_heads)
        index_cache = (CacheLayer(elements=kind.index_dim, whole=True),) if kind.index_dim else ()
        return () if kind.shares else (key_value_cache, *index_cache)
    if isinstance(kind, Compressed):
        return _compressed(kind)
    if isinstance(kind, ShortConv):
        return (CacheLayer(state_elements=kind.kept),)
    if isinstance(kind, Matrices):
        matrices, dtype = kind.matrices or UNSET, kind.state or UNSET
        return (CacheLayer(state_elements=kind.kept, matrices=matrices, matrix_dtype=dtype),)
    index_cache = (_index_key(kind.index_dim),) if kind.index_dim else ()
    return (CacheLayer(elements=kind.cached), *index_cache)


def _compressed(kind: Compressed) -> tuple[CacheLayer, ...]:
    """Return the window, and with entries also the entries, index keys and compressor states."""
    window = CacheLayer(elements=kind.width, window=kind.window, more=_RECORD)
    if kind.span is None:
        return (window,)
    overlap = 1 + (kind.index_dim is not None)
    rows = overlap * kind.span
    entries = CacheLayer(elements=kind.width // kind.span, more=_RECORD / kind.span)
    caches = (window, entries, _unfinished(rows, overlap * kind.width))
    if kind.index_dim is None:
        return caches
    index = _index_key(kind.index_dim, kind.span), _unfinished(rows, overlap * kind.index_dim)
    return caches + index


def _index_key(width: int, span: int = 1) -> CacheLayer:
    """Return what an indexer caches for each `span` positions: a key in float8 and its scales.

    It does not depend on the dtype of the cache. Source: vllm 0.33.0,
    vllm/models/deepseek_v32/attention.py:96-97 and deepseek_v4/attention.py:1024-1033; sglang
    0.5.23, sglang/srt/mem_cache/index_key_cache.py:46 and deepseek_v4_memory_pool.py:53-57.
    """
    elements = (width + width // _SCALED * _SCALE_BYTES) // span
    return CacheLayer(elements=elements, dtype="float8")


def _unfinished(rows: int, width: int) -> CacheLayer:
    """Return a compressor's state: the last positions of a request, which form no entry yet.

    Each rank holds a state and a score for all of them, in float32 whatever the dtype of the cache.
    SGLang uses another dtype if an environment variable says so, and twice the rows with
    speculative decoding.
    Source: CompressorStateCache of vllm 0.33.0, vllm/models/deepseek_v4/compressor.py; sglang
    0.5.23, sglang/srt/mem_cache/deepseek_v4_memory_pool.py:60-79, and
    model_executor/pool_configurator.py:136-145.
    """
    state = 2 * rows * width
    return CacheLayer(state_elements=state, matrices=state, matrix_dtype="float32", whole=True)
