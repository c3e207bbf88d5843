"""The pins of engines' builds: what their packages and headers give is what the lock holds."""

import re

import pytest
from nearfree.backends.builds import Build, builds
from nearfree.errors import SourceError
from nearfree.sources.engine_builds import (
    FUNCTIONS,
    HEADERS,
    LIBRARIES,
    STRUCTS,
    compiled_build,
    prebuilt_build,
    read_abi,
)
from nearfree.sources.fetching.cache import Cache

from sources.cpp.test_header import headers


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


@pytest.mark.slow
def test_the_lock_is_what_the_packages_give(source_cache: Cache) -> None:
    """Made anew from the registries, each build is that of envs/engines.lock."""
    locked = builds("llama_cpp")
    read = {release: headers(release, source_cache) for release in locked}
    told = {r: {path: texts[path] for path in HEADERS} for r, texts in read.items()}
    assert prebuilt_build("3.22.1", told["3.22.1"], cache=source_cache) == locked["3.22.1"]
    assert compiled_build(told["0.3.36"]) == locked["0.3.36"]
