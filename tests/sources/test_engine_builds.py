"""The pins of engines' builds: what their packages and headers give is what the lock holds."""

import re

import pytest
from nearfree.backends.builds import Build, builds
from nearfree.errors import SourceError
from nearfree.sources.engine_builds import (
    FUNCTIONS,
    LIBRARIES,
    STRUCTS,
    compiled_build,
    read_abi,
    read_build,
    read_speculation,
)
from nearfree.sources.fetching.cache import Cache


def small(**changes: str) -> dict[str, str]:
    """Return headers that declare all that is called, each structure of one number."""
    declared = [f"struct {name} {{ int a; }};" for name in STRUCTS]
    declared += [changes.get(name, f"void {name}(void);") for name in FUNCTIONS]
    return {"b.h": "\n".join(declared), "a.h": ""}


def test_what_crosses_a_call_is_read_from_headers() -> None:
    """Structures and functions stand by name, headers by the hash of their text."""
    abi = read_abi(small(llama_decode="int llama_decode(struct hidden * a, struct llama_batch b);"))
    assert list(abi.headers) == ["a.h", "b.h"]
    assert abi.structs == {name: ["i32 a"] for name in sorted(STRUCTS)}
    assert abi.functions["llama_decode"] == "i32 (pointer, struct llama_batch)"
    assert abi.functions["llama_free"] == "void ()"


@pytest.mark.parametrize("name", ["llama_decode", "ggml_get_name"])
def test_a_header_without_a_function_is_refused(name: str) -> None:
    """A release whose header lacks what is called is refused, and the function named."""
    with pytest.raises(SourceError, match=f"declares no function {name}"):
        read_abi(small(**{name: ""}))


def test_a_compiled_build_pins_no_library() -> None:
    """What is compiled here has no libraries in the lock, and an environment of its own."""
    build = compiled_build(small())
    assert not build.prebuilt
    assert build.environment == "llama_cpp"


def test_the_lock_pins_every_cpu_s_library() -> None:
    """A prebuilt release's libraries are of this project's pattern, one of them for any x86-64."""
    build: Build = builds("llama_cpp")["3.22.1"]
    assert build.prebuilt
    assert all(re.fullmatch(LIBRARIES, path) for path in build.libraries)
    assert any(path.endswith("libggml-cpu-x64.so") for path in build.libraries)


SAID = """
struct common_params_speculative_draft {
    int32_t n_max = 3; // drafts
    int32_t n_min = 0;
};
struct common_params_speculative_ngram_map {
    uint16_t size_n   = 12;
    uint16_t size_m   = 48;
    uint16_t min_hits = 1;
};
struct common_params_speculative_ngram_mod {
    int32_t n_match = 24;

    int32_t n_max = 64;
    int32_t n_min = 48;
};
struct common_params_speculative {
    common_params_speculative_ngram_mod ngram_mod;
    common_params_speculative_ngram_map ngram_simple;
    common_params_speculative_ngram_map ngram_map_k;
    common_params_speculative_ngram_map ngram_map_k4v;
};
"""
CODE = """
static common_speculative_impl_ngram_cache create_state_ngram_cache(int n_seq) {
    uint16_t n_draft = 8; // no option
}
"""


def test_defaults_are_read_from_the_release_s_own_options() -> None:
    """Each type's drafts stand by type and option."""
    assert read_speculation(SAID, CODE) == {
        "draft.n_max": 3, "draft.n_min": 0, "ngram_simple.size_n": 12, "ngram_simple.size_m": 48,
        "ngram_map_k.size_n": 12, "ngram_map_k.size_m": 48,
        "ngram_map_k4v.size_n": 12, "ngram_map_k4v.size_m": 48, "ngram_map_k4v.min_hits": 1,
        "ngram_mod.n_match": 24, "ngram_mod.n_max": 64, "ngram_mod.n_min": 48,
        "ngram_cache.n_draft": 8,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new"),
    [("= 12", "= N"), (" ngram_simple;", " another;"), ("struct common_params_speculative_d", "x")],
)
def test_options_of_another_form_are_refused(old: str, new: str) -> None:
    """A release that keeps its defaults elsewhere needs a look, not a guess."""
    with pytest.raises(SourceError, match="gives common_params_speculative"):
        read_speculation(SAID.replace(old, new), CODE)
    with pytest.raises(SourceError, match="create_state_ngram_cache no plain n_draft"):
        read_speculation(SAID, CODE.replace("= 8", "= n"))


@pytest.mark.slow
def test_the_lock_is_what_the_packages_give(source_cache: Cache) -> None:
    """Made anew from the registries, each build is that of envs/engines.lock."""
    for release, locked in builds("llama_cpp").items():
        assert read_build(release, prebuilt=locked.prebuilt, cache=source_cache) == locked
