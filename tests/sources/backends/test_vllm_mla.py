"""vLLM's choice of latent attention, read from text: order of backends and thresholds."""

import itertools
import re

import pytest
from nearfree.errors import EvidenceError, SourceError
from nearfree.sources.fetching.cache import Cache
from nearfree.sources.fetching.fetch import fetch
from nearfree.sources.mla_paths import VLLM_MLA, engine_paths, path_at
from once import one_in

from sources.backends.vllm_mla import KERNELS, WANTED, Decoding, read_decoding

PLATFORM = """
def _get_backend_priorities(use_mla, device_capability, kv=None):
    if use_mla:
        if device_capability.major == 10:
            if kv is not None:
                tail = [Enum.FLASHMLA_SPARSE]
            else:
                tail = []
            return [Enum.CUTLASS_MLA, Enum.TRITON_MLA, *tail]
        elif device_capability.major == 12:
            return [Enum.TRITON_MLA]
        else:
            return [Enum.FLASH_ATTN_MLA, Enum.FLASHMLA, Enum.TRITON_MLA]
    else:
        return [Enum.FLASH_ATTN]
"""
BACKEND = """
class {name}Backend:
    supported_kv_cache_dtypes: Any = {caches}
    def supports_compute_capability(cls, capability):
        return {supports}
class {name}MetadataBuilder:
    {said}
class XPU{name}MetadataBuilder:
    query_len_support: int = SINGLE_ONLY
"""
_AT = "vllm/v1/attention/backends/mla/"


def backend(supports: str, name: str = "pass", caches: str = "['auto', 'fp8']") -> str:
    """Return the text of a backend's file."""
    return BACKEND.format(name="Any", supports=supports, said=name, caches=caches)


FILES = {
    "vllm/platforms/cuda.py": PLATFORM,
    f"{_AT}cutlass_mla.py": backend("capability.major == 10"),
    f"{_AT}flashattn_mla.py": backend(
        "capability.major == 9",
        "query_len_support: Any = Q.VARLEN\n    reorder_batch_threshold: int = 512",
        caches="['auto']",
    ),
    f"{_AT}flashmla.py": backend("capability.major in [9, 10]"),
    f"{_AT}triton_mla.py": backend("True", "query_len_support: Any = Q.UNIFORM"),
}


@pytest.mark.parametrize(
    ("major", "name", "most"),
    [(8, "TRITON_MLA", None), (9, "FLASH_ATTN_MLA", 512), (10, "CUTLASS_MLA", 1),
     (12, "TRITON_MLA", None)],
)  # fmt: skip
def test_the_first_that_supports_a_gpu_decodes(major: int, name: str, most: int | None) -> None:
    """The platform's first backend for the GPU decodes; by default one position."""
    decoding = read_decoding(FILES, major)
    assert (decoding.backend, decoding.most) == (name, most)
    assert all(re.fullmatch(r"vllm/\S+\.py line \d+", place) for place in decoding.places)


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [("vllm/platforms/cuda.py", "if use_mla:", "if use_latent:"),
     ("vllm/platforms/cuda.py", "if kv is not None:", "if kv: return 0\n            if x:"),
     ("vllm/platforms/cuda.py", "major == 10:", "major > 9:"),
     (f"{_AT}cutlass_mla.py", "return capability.major == 10", "return f(capability)"),
     (f"{_AT}cutlass_mla.py", "supports_compute_capability", "supports")],
)  # fmt: skip
def test_another_form_is_refused(path: str, old: str, new: str) -> None:
    """Text that decides in another way is refused."""
    assert old in FILES[path]
    with pytest.raises(SourceError):
        read_decoding({**FILES, path: FILES[path].replace(old, new)}, 10)


def test_a_cache_of_few_bits_is_another_backends() -> None:
    """Hopper's first backend takes 16 bits only; a format of no backend is refused."""
    assert read_decoding(FILES, 9, "fp8").backend == "FLASHMLA"
    with pytest.raises(SourceError, match="a cache of int4"):
        read_decoding(FILES, 9, "int4")


FORMS = ["0.11.1", "0.14.1", "0.15.0", "0.17.0", "0.18.0", "0.20.2", "0.30.0", "0.31.0"]


@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.33.0", *FORMS[one_in(3, "mla")]])
def test_the_table_is_what_releases_say(version: str, source_cache: Cache) -> None:
    """Each entry of `mla_paths` equals the reading of the release's text."""
    source = fetch("vllm", version, WANTED, cache=source_cache)
    files = {path: source.text(path) for path in source.paths()}
    for sm, cache in itertools.product((80, 90, 100, 120), ("auto", "fp8")):
        recorded = _told(version, sm, few_bits=cache != "auto")
        if recorded is None:
            with pytest.raises(SourceError, match="names no backend"):
                read_decoding(files, sm // 10, cache)
        else:
            decoding = read_decoding(files, sm // 10, cache)
            assert (KERNELS[decoding.backend], decoding.most) == recorded


def _told(version: str, sm: int, *, few_bits: bool) -> tuple[str, int | None] | None:
    try:
        (path,) = engine_paths(VLLM_MLA, version, sm, few_bits=few_bits)
    except EvidenceError:
        return None
    assert path_at([path], 1) is path
    return path.kernel, path.most


def test_a_decoding_has_its_places() -> None:
    """A reading names the lines of the order, the capabilities and the thresholds."""
    assert isinstance(read_decoding(FILES, 9), Decoding)
    assert len(read_decoding(FILES, 9).places) == 4
    with pytest.raises(EvidenceError):
        engine_paths(VLLM_MLA, "0.11.0", 100)
