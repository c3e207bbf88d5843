"""C headers: fields and types as a compiler sees them; anything else is refused."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
from msgspec import json
from nearfree.backends.builds import LOCK, Build, builds
from nearfree.engines.abi import Calls
from nearfree.errors import SourceError
from nearfree.sources.backends.ggml import PACKAGE, VENDORED
from nearfree.sources.cpp.header import Header
from nearfree.sources.engine_builds import FUNCTIONS, HEADERS, STRUCTS, read_abi
from nearfree.sources.fetching.cache import Cache
from nearfree.sources.fetching.fetch import fetch

RELEASES = ("3.22.1", "0.3.36")


def struct(text: str, name: str = "s") -> list[str]:
    """Return the fields of a header's structure."""
    return [" ".join(field) for field in Header({"a.h": text}).struct(name)]


def function(text: str) -> tuple[str, list[str]]:
    """Return the types of a header's function `f`."""
    return Header({"a.h": text}).function("f")


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("struct s { int a; // one\n float b; /* two */ };", ["i32 a", "f32 b"]),
        ("struct s { bool a; int8_t b; size_t c; };", ["bool a", "i8 b", "size c"]),
        ("struct s { int64_t a; uint64_t b; double c; };", ["i64 a", "u64 b", "f64 c"]),
        ("struct s { const int a; int32_t const b; };", ["i32 a", "i32 b"]),
        ("struct s { int a, *b, c[2]; };", ["i32 a", "pointer b", "i32[2] c"]),
        ("struct s { const float * a; char ** b; };", ["pointer a", "pointer b"]),
        ("struct s { void (*done)(int code, void * data); };", ["pointer done"]),
        ("struct s { void * (*make)(int code); };", ["pointer make"]),
        ("enum e { A }; struct s { enum e a; };", ["i32 a"]),
        ("typedef enum f { A } e; struct s { e a; };", ["i32 a"]),
        ("typedef int32_t token; struct s { token a; token * b; };", ["i32 a", "pointer b"]),
        ("typedef int32_t one; typedef one two; struct s { two a; };", ["i32 a"]),
        ("typedef struct hidden * handle; struct s { handle a; };", ["pointer a"]),
        ("typedef bool (*done)(void * data); struct s { done a; };", ["pointer a"]),
        ("typedef void * (*make)(int code); struct s { make a; };", ["pointer a"]),
        ("typedef struct s { int a; } t;", ["i32 a"]),
        ("struct s { int a;\n#ifdef MORE\n int b;\n#endif\n};", ["i32 a"]),
        ("struct s;\nstruct s { int a; };", ["i32 a"]),
    ],
)  # fmt: skip
def test_the_fields_of_a_structure(text: str, fields: list[str]) -> None:
    """Fields are numbers of a width, pointers or arrays, in the text's order."""
    assert struct(text) == fields


def test_structures_inside_of_structures_are_reached() -> None:
    """What stands inside of a structure, or of an array of it, is told with it; pointers are not.

    Its name may be given with `struct` or by a type definition.
    """
    text = (
        "struct far { int a; }; struct in { struct far * a; float b; }; typedef struct in in;"
        "struct s { in a; struct in b; };"
    )
    assert Header({"a.h": text}).reached(["s"]) == {
        "s": [("struct in", "a"), ("struct in", "b")],
        "in": [("pointer", "a"), ("f32", "b")],
    }


def test_several_headers_are_read_as_one() -> None:
    """A type of one header is known in the others, in any order."""
    files = {"a.h": "struct s { kind a; };", "b.h": "enum e { A }; typedef enum e kind;"}
    assert Header(files).struct("s") == [("i32", "a")]


def test_what_only_cpp_reads_is_left_out() -> None:
    """`extern "C"` and export macros are skipped."""
    text = """
#ifdef __cplusplus
extern "C" {
#endif
    LLAMA_API struct s * f(
            int32_t a,   // with words (and brackets
            GGML_CALL bool b);
    DEPRECATED(LLAMA_API int old(int a), "use f");
    struct s { int a; };
#ifdef __cplusplus
}
#endif
"""
    assert function(text) == ("pointer", ["i32", "bool"])
    assert struct(text) == ["i32 a"]
    with pytest.raises(SourceError, match="declares no function old"):
        Header({"a.h": text}).function("old")


@pytest.mark.parametrize(
    ("text", "types"),
    [
        ("void f(void);", ("void", [])),
        ("int f();", ("i32", [])),
        ("char * f(char ** a, int b[], size_t);", ("pointer", ["pointer", "pointer", "size"])),
        ("bool f(void (*done)(int code), float a);", ("bool", ["pointer", "f32"])),
        ("struct s { int a; }; struct s f(struct s a);", ("struct s", ["struct s"])),
        ("typedef struct hidden * handle; void f(handle a);", ("void", ["pointer"])),
        ("int f(int a); int f(int b);", ("i32", ["i32"])),
        ("static inline int f(int a) { return a; }", ("i32", ["i32"])),
    ],
)  # fmt: skip
def test_the_types_of_a_function(text: str, types: tuple[str, list[str]]) -> None:
    """A function has its return type and its parameters' types."""
    assert function(text) == types


@pytest.mark.parametrize(
    "text",
    [
        "struct s { long a; };",
        "struct s { unknown a; };",
        "struct s { int a : 3; };",
        "struct s { union { int a; float b; }; int c; };",
        "struct s { union { int a; float b; } c; };",
        "struct s { struct { int * a; } b; };",
        "typedef struct { int * a; } t; struct s { t b; };",
        "typedef enum { A } e; struct s { e a; };",
        "enum e : long { A }; struct s { enum e a; };",
        "typedef int four[4]; struct s { four a; };",
        "struct s { float * a[4]; };",
        "struct s { int (*a)[3]; };",
        "struct s { int a[2][3]; };",
        "struct s { int a[SIZE]; };",
        "struct s { int f(int a); };",
        "struct s { int a = 3; };",
        "struct s { static int a; };",
        "struct s : t { int a; };",
        "struct t; struct s { struct t a; };",
        "struct s { int a;\n#if MORE\n int b;\n#endif\n};",
        "struct s { int a; }; struct s { float a; };",
        "#if MORE\nstruct s { int a; };\n#else\nstruct s { int64_t a; };\n#endif",
        "typedef int one; typedef float one; struct s { one a; };",
        "typedef one two; typedef two one; struct s { one a; };",
        "class s { int a; };",
        "struct s;",
        "struct __attribute__((packed)) s { char a; int b; };",
        "struct s { char a; int b; } __attribute__ ((__packed__));",
        "#pragma pack(1)\nstruct s { char a; int b; };",
        "struct s { char a; _Alignas(16) int b; };",
    ],
)
def test_a_structure_of_an_unknown_form_is_refused(text: str) -> None:
    """A structure whose layout differs from its fields is refused."""
    with pytest.raises(SourceError):
        struct(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "int * f;",
        "int g(int f);",
        "int f(int a, ...);",
        "int f(union u a);",
        "struct t; struct t f(void);",
        "void (*f(int a))(int);",
        "long f(void);",
        "#if MORE\nint f(int a);\n#else\nint f(float a);\n#endif",
    ],
)
def test_a_function_of_an_unknown_form_is_refused(text: str) -> None:
    """A function with unknown or ambiguous types is refused."""
    with pytest.raises(SourceError):
        function(text)


def headers(release: str, cache: Cache) -> dict[str, str]:
    """Return all real headers of a release, by path."""
    wanted = rf"({VENDORED})?(ggml/)?include/[\w-]+\.h"
    source = fetch(PACKAGE, release, wanted, cache=cache)
    return {path.removeprefix(VENDORED): source.text(path) for path in source.paths()}


def sized(build: Build) -> dict[str, list[int]]:
    """Return the offsets and sizes that ctypes gives a build's structures."""
    calls = Calls([], build.abi.structs, {})
    sizes = {}
    for name, fields in build.abi.structs.items():
        kind = calls.struct(name)
        places = [getattr(kind, field.rpartition(" ")[2]).offset for field in fields]
        sizes[name] = [*places, ctypes.sizeof(kind)]
    return sizes


@pytest.mark.slow
@pytest.mark.parametrize("release", RELEASES)
def test_the_lock_says_what_the_headers_say(release: str, source_cache: Cache) -> None:
    """Headers read again equal envs/engines.lock byte for byte."""
    layouts = headers(release, source_cache)
    assert read_abi({path: layouts[path] for path in HEADERS}) == builds("llama_cpp")[release].abi


@pytest.mark.slow
@pytest.mark.parametrize("release", RELEASES)
def test_a_compiler_lays_structures_out_alike(
    release: str, source_cache: Cache, tmp_path: Path
) -> None:
    """Ctypes and a C compiler give equal offsets and sizes."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no gcc here")
    for path, text in headers(release, source_cache).items():
        (tmp_path / Path(path).name).write_text(text)
    build = builds("llama_cpp")[release]
    expressions = []
    for name, fields in build.abi.structs.items():
        spelt = f"struct {name}"
        expressions += [
            f"offsetof({spelt}, {field.rpartition(' ')[2]})" for field in fields
        ] + [f"sizeof({spelt})"]  # fmt: skip
    lines = "".join(f'    printf("%zu\\n", {expression});\n' for expression in expressions)
    program = tmp_path / "layout.c"
    program.write_text(
        "#include <stddef.h>\n#include <stdio.h>\n"
        '#include "ggml.h"\n#include "ggml-backend.h"\n#include "llama.h"\n'
        f"int main(void) {{\n{lines}    return 0;\n}}\n"
    )
    command = [compiler, "-O1", "-w", "-std=c11", "-I", str(tmp_path), str(program)]
    subprocess.run([*command, "-o", str(tmp_path / "layout")], check=True)
    out = subprocess.run([tmp_path / "layout"], check=True, capture_output=True, text=True).stdout
    assert [int(line) for line in out.split()] == [
        n for structure_size in sized(build).values() for n in structure_size
    ]


def test_the_lock_holds_every_call() -> None:
    """Each locked release has all structures and functions in use."""
    locked = json.decode(LOCK.read_bytes())
    assert set(locked["llama_cpp"]) == set(RELEASES)
    for build in builds("llama_cpp").values():
        assert set(STRUCTS) <= set(build.abi.structs)
        assert set(FUNCTIONS) == set(build.abi.functions)
        assert set(HEADERS) == set(build.abi.headers)
