"""Which kernel of latent attention an engine runs, and up to how many positions it decodes.

An engine decodes a request of up to some number of new positions over the latent itself (absorbed);
more positions go to prefill, which first expands all cached latents into keys and values of each
head. The part on vLLM is checked by tests against the text of releases from 0.11.1 on
(`tests/sources/backends/vllm_mla.py`); all else was read by hand. The kernels' tiles are in
`mla_tiles`.
"""

from collections.abc import Sequence

from msgspec import Struct
from packaging.version import InvalidVersion, Version

from nearfree.errors import EvidenceError

VLLM_MLA, SGLANG_MLA, TRTLLM_MLA = "vllm_mla", "sglang_mla", "trtllm_mla"
"""Backends that stand for an engine's own choice of a kernel."""
ENGINES = (VLLM_MLA, SGLANG_MLA, TRTLLM_MLA)
_LATEST = {VLLM_MLA: "0.33.0", SGLANG_MLA: "0.5.23", TRTLLM_MLA: "1.2.0"}


class MlaPath(Struct, frozen=True, kw_only=True):
    """A kernel for the positions from `least` to `most` (None: all), on some GPUs and releases.

    `first` and `last` are releases, both included; `capabilities` is a range, 90 for 9.0.
    """

    engine: str
    kernel: str
    capabilities: tuple[int, int]
    first: str
    last: str
    place: str
    least: int = 1
    most: int | None = None
    few_bits: bool | None = None
    """Whether it is for caches of fewer than 16 bits; None if for all."""

    def applies_to(self, engine: str, release: Version, sm: int, *, few_bits: bool) -> bool:
        """Return whether it holds for an engine's release on a GPU with such a cache."""
        low, high = self.capabilities
        has_release = Version(self.first) <= release <= Version(self.last)
        has_cache = self.few_bits in (None, few_bits)
        return engine == self.engine and low <= sm <= high and has_release and has_cache


_ORDER = (
    "vllm/platforms/cuda.py, _get_backend_priorities (0.14.0 line 45, 0.20.2 line 79, 0.33.0 "
    "line 84)"
)
_BACKENDS = "v1/attention/backends/mla"
_TRTLLM_OP = "NVIDIA/TensorRT-LLM, cpp/tensorrt_llm/thop/attentionOp.cpp, mUseGenFlashMLA"
_AMPERE, _HOPPER, _BLACKWELL, _CONSUMER = (80, 89), (90, 90), (100, 119), (120, 129)
PATHS = (
    MlaPath(engine=VLLM_MLA, kernel="flashmla", capabilities=_HOPPER, first="0.9.1",
            last="0.11.0", most=1, few_bits=False,
            place="vllm/platforms/cuda.py, check_and_update_config and get_attn_backend_cls (0.9.1 "
            f"lines 144-153 and 195-224, 0.11.0 138-165 and 263-290); {_BACKENDS}/common.py: one "
            "position"),
    MlaPath(engine=VLLM_MLA, kernel="fa3", capabilities=_HOPPER, first="0.11.1", last="0.33.0",
            most=512, few_bits=False,
            place=f"{_ORDER}; {_BACKENDS}/flashattn_mla.py, reorder_batch_threshold 512"),
    MlaPath(engine=VLLM_MLA, kernel="flashmla", capabilities=_HOPPER, first="0.11.1",
            last="0.33.0", most=128, few_bits=True,
            place=f"{_ORDER}; {_BACKENDS}/flashmla.py, reorder_batch_threshold 128"),
    MlaPath(engine=VLLM_MLA, kernel="cutlass", capabilities=_BLACKWELL, first="0.11.1",
            last="0.14.99", most=1, place=f"{_ORDER}; {_BACKENDS}/cutlass_mla.py: one position"),
    MlaPath(engine=VLLM_MLA, kernel="trtllm_gen", capabilities=_BLACKWELL, first="0.15.0",
            last="0.33.0",
            place=f"{_ORDER}; {_BACKENDS}/flashinfer_mla.py, 1 + speculative positions"),
    *(
        path
        for capabilities in (_AMPERE, _CONSUMER)
        for path in (
            MlaPath(engine=SGLANG_MLA, kernel="triton_decode", capabilities=capabilities,
                    first="0.5.9", last="0.5.23", most=1,
                    place="srt/layers/attention/triton_backend.py, forward_decode (0.5.9)"),
            MlaPath(engine=SGLANG_MLA, kernel="triton_extend", capabilities=capabilities,
                    first="0.5.9", last="0.5.23", least=2,
                    place="srt/layers/attention/triton_backend.py line 93 (0.5.9): verify is "
                    "extend_attention_fwd, keys not split"),
            MlaPath(engine=VLLM_MLA, kernel="triton_decode", capabilities=capabilities,
                    first="0.9.1", last="0.30.99", most=1, few_bits=False,
                    place=f"{_ORDER}; {_BACKENDS}/triton_mla.py: one position"),
            MlaPath(engine=VLLM_MLA, kernel="triton_decode", capabilities=capabilities,
                    first="0.18.0", last="0.30.99", most=1, few_bits=True,
                    place=f"{_ORDER}; {_BACKENDS}/triton_mla.py: one position"),
            MlaPath(engine=VLLM_MLA, kernel="triton_decode", capabilities=capabilities,
                    first="0.31.0", last="0.33.0",
                    place=f"{_ORDER}; {_BACKENDS}/triton_mla.py: positions are rows of the batch"),
        )
    ),
    MlaPath(engine=SGLANG_MLA, kernel="fa3", capabilities=_HOPPER, first="0.5.9", last="0.5.23",
            place="srt/server_args.py lines 1817-1833 (0.5.9): fa3, target_verify as decode"),
    MlaPath(engine=SGLANG_MLA, kernel="trtllm_gen", capabilities=_BLACKWELL, first="0.5.9",
            last="0.5.23", place="srt/server_args.py line 1283 (0.5.9): trtllm_mla of DeepSeek V3"),
    MlaPath(engine=TRTLLM_MLA, kernel="flashmla", capabilities=_HOPPER, first="1.0.0",
            last="1.99", place=f"{_TRTLLM_OP}: FlashMLA on compute capability 9.0"),
    MlaPath(engine=TRTLLM_MLA, kernel="trtllm_gen", capabilities=_BLACKWELL, first="1.0.0",
            last="1.99", place=f"{_TRTLLM_OP}: its own kernels from 10.0 on"),
)  # fmt: skip


def engine_paths(
    engine: str, version: str | None, sm: int, *, few_bits: bool = False
) -> Sequence[MlaPath]:
    """Return the decoding kernels of an engine's release on a GPU, in ascending order of positions.

    Positions that none of them takes go to prefill. `few_bits` holds if the cache has fewer than 16
    bits per element.

    Raises
    ------
    EvidenceError
        The release is not given, or its choice on such a GPU is unknown.
    """
    try:
        release = Version(version or "")
    except InvalidVersion as error:
        raise EvidenceError(
            f"no release of {engine} is given, and kernels differ between releases",
            remedy=f"Give one, such as {engine.replace('_', '-')}=={_LATEST[engine]}",
        ) from error
    paths = [path for path in PATHS if path.applies_to(engine, release, sm, few_bits=few_bits)]
    if not paths:
        cache_note = " over a cache of few bits" if few_bits else ""
        raise EvidenceError(
            f"which latent attention {engine} {version} runs{cache_note} on compute capability "
            f"{sm // 10}.{sm % 10} is not known",
            remedy=f"Ask for {_LATEST[engine]}, or name a kernel",
        )
    return sorted(paths, key=lambda path: path.least)


def path_at(paths: Sequence[MlaPath], positions: int) -> MlaPath | None:
    """Return the kernel that decodes so many positions of a request; None for prefill."""
    return next((p for p in paths if p.least <= positions <= (p.most or positions)), None)
