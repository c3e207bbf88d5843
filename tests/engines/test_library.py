"""Libraries: only files that match the lock and this machine are loaded."""

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module, metadata
from pathlib import Path
from struct import pack

import nearfree
import pytest
from msgspec import structs
from nearfree.backends import builds
from nearfree.backends.builds import Abi, Build, build_of
from nearfree.engines import library
from nearfree.engines.abi import Calls
from nearfree.engines.files import library_folder, prebuilt_folder, put_libraries
from nearfree.engines.library import (
    Library,
    check_prebuilt,
    installed_folder,
    load,
    recorded_sha256,
)
from nearfree.errors import ConfigError, EvidenceError, LockError

from engines.conftest import ENGINE, RELEASE, Real, fake_build

NAMES = ("libggml-base.so", "libggml.v1.so", "libllama.v1.so")
FILES = {name: f"the bytes of {name}".encode() for name in NAMES}
AARCH64 = (
    b"\x7fELF\x02\x01\x01" + bytes(9) + pack("<HHIQQQIHHHHHH", 3, 183, 1, *[0] * 4, 64, *[0] * 5)
)
"""The header of a shared object for another CPU."""  # fmt: skip


def put(folder: Path, files: dict[str, bytes]) -> Path:
    """Write files into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, raw in files.items():
        (folder / name).write_bytes(raw)
    return folder


Damage = Callable[[Path], object]
DAMAGES: dict[str, tuple[Damage, str]] = {
    "a changed byte": (lambda f: (f / NAMES[2]).write_bytes(b"The bytes"), NAMES[2]),
    "one more byte": (lambda f: (f / NAMES[0]).write_bytes(FILES[NAMES[0]] + b"."), NAMES[0]),
    "a missing library": (lambda f: (f / NAMES[1]).unlink(), NAMES[1]),
    "a library more": (lambda f: (f / "libggml-cpu-own.so").touch(), "libggml-cpu-own.so"),
    "a version more": (lambda f: (f / "libllama.so.1").touch(), "libllama.so.1"),
    "an empty library": (lambda f: (f / NAMES[1]).write_bytes(b""), NAMES[1]),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_folder_that_differs_from_the_lock_is_refused(
    damage: str, cache: Path, nothing_loads: None
) -> None:
    """A changed, missing or extra library is one error that names it; nothing is opened."""
    build = fake_build(FILES)
    folder = put(prebuilt_folder(ENGINE, RELEASE), FILES)
    assert library_folder(ENGINE, RELEASE, build) == folder
    change, name = DAMAGES[damage]
    change(folder)
    with pytest.raises(LockError, match=rf"engines\.lock pins: {name}") as caught:
        library_folder(ENGINE, RELEASE, build)
    assert "fetch" in caught.value.remedy


def test_a_library_that_was_not_fetched_is_named(cache: Path) -> None:
    """Where a release's folder is missing, the error says which, and how to get it."""
    with pytest.raises(EvidenceError, match=r"llama_cpp 3\.22\.1 is not here") as caught:
        library_folder(ENGINE, RELEASE, fake_build(FILES))
    assert "nearfree fetch" in caught.value.remedy


@pytest.mark.parametrize("damage", ["changed", "missing", "more"])
def test_libraries_are_installed_completely_or_not_at_all(damage: str, cache: Path) -> None:
    """Files that differ from the lock are not installed; the folder stays as it was."""
    build, folder = fake_build(FILES), prebuilt_folder(ENGINE, RELEASE)
    put_libraries(ENGINE, RELEASE, build, {f"bins/{n}": raw for n, raw in FILES.items()})
    files: dict[str, dict[str, bytes]] = {
        "changed": FILES | {NAMES[0]: b"other"},
        "missing": {NAMES[0]: FILES[NAMES[0]]},
        "more": FILES | {"libggml-cpu-own.so": b""},
    }
    with pytest.raises(LockError):
        put_libraries(ENGINE, RELEASE, build, files[damage])
    check_prebuilt(build, folder)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_damaged_folder_is_replaced(cache: Path) -> None:
    """Installing the right libraries again repairs a changed folder."""
    build = fake_build(FILES)
    put(prebuilt_folder(ENGINE, RELEASE), {NAMES[0]: b"other", "libggml-cpu-own.so": b""})
    folder = put_libraries(ENGINE, RELEASE, build, FILES)
    assert library_folder(ENGINE, RELEASE, build) == folder
    assert sorted(path.name for path in folder.iterdir()) == sorted(NAMES)


@pytest.mark.parametrize(
    "raw", [b"text and no program", b"", AARCH64, b"\x7fELF"], ids=["text", "empty", "cpu", "cut"]
)
def test_a_library_for_another_machine_is_one_error(
    raw: bytes, tmp_path: Path, unloaded: None
) -> None:
    """A library that the system cannot load is refused; no build counts as loaded."""
    files = dict.fromkeys(NAMES, raw)
    build, folder = fake_build(files), put(tmp_path / "engine", files)
    check_prebuilt(build, folder)
    with pytest.raises(EvidenceError, match="does not run on this machine") as caught:
        load(folder, build)
    assert "glibc" in caught.value.remedy
    assert library._loaded == {}
    assert str(folder) not in Path("/proc/self/maps").read_text()


def test_two_builds_do_not_mix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nothing_loads: None
) -> None:
    """A process that has loaded a build loads no other; the same one is returned again."""
    first = Library(calls=Calls([], {}, {}), system_info="", files={})
    monkeypatch.setattr(library, "_loaded", {tmp_path / "first": first})
    assert load(tmp_path / "first", fake_build(FILES)) is first
    with pytest.raises(EvidenceError, match="another build than") as caught:
        load(tmp_path / "second", fake_build(FILES))
    assert "a command of its own" in caught.value.remedy


@pytest.mark.parametrize(
    "name", ["GGML_BACKEND_PATH", "GGML_CPU_DISABLE_FUSION", "LLAMA_GRAPH_REUSE_DISABLE"]
)
def test_a_variable_that_changes_forwards_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nothing_loads: None
) -> None:
    """A variable that names a library of any content, or changes a forward, is refused."""
    monkeypatch.setenv(name, str(tmp_path / "own.so"))
    with pytest.raises(EvidenceError, match=f"{name} is set"):
        load(put(tmp_path / "engine", FILES), fake_build(FILES))


def test_a_function_that_a_library_lacks_is_named() -> None:
    """A library without a function of its header is of another release."""
    known = ctypes.CDLL(None)
    assert Calls([known], {}, {"strlen": "size (pointer)"}).strlen(b"four") == 4
    with pytest.raises(EvidenceError, match="have no function llama_of_tomorrow"):
        Calls([known], {}, {"strlen": "size (pointer)", "llama_of_tomorrow": "void ()"})


def test_structures_are_made_of_their_codes() -> None:
    """A structure has its fields at their widths, nested ones and arrays inside."""
    calls = Calls([], {"in": ["i8 a", "f64 b"], "out": ["bool x", "struct in y", "u16[3] z"]}, {})
    out = calls.struct("out")
    assert ctypes.sizeof(out) == 32
    assert (out.y.offset, out.z.offset, out.z.size) == (8, 24, 6)
    assert calls.struct("in") is dict(out._fields_)["y"]
    with pytest.raises(AttributeError):
        _ = calls.nothing


def test_an_unknown_release_is_named() -> None:
    """A release without a lock is refused with the list of known releases."""
    with pytest.raises(ConfigError, match=r"no build of llama_cpp 1\.0 is pinned") as caught:
        build_of(ENGINE, "1.0")
    assert RELEASE in caught.value.remedy
    with pytest.raises(ConfigError, match="no build of torch"):
        build_of("torch", RELEASE)


def test_a_project_without_a_lock_has_that_of_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a project has no lock of its own, the package's lock applies."""
    shipped = build_of(ENGINE, RELEASE)
    monkeypatch.chdir(tmp_path)
    assert build_of(ENGINE, RELEASE) == shipped
    put(tmp_path / "envs", {"engines.lock": b"{}"})
    with pytest.raises(ConfigError, match="no build of llama_cpp"):
        build_of(ENGINE, RELEASE)


@pytest.mark.parametrize("raw", [None, b"{", b'{"llama_cpp": {"1.0": {}}}', b'{"llama_cpp": 1}'])
def test_a_damaged_lock_is_one_error(
    raw: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing, truncated or malformed lock is refused with its path and what to do."""
    path = tmp_path / "engines.lock"
    if raw is not None:
        path.write_bytes(raw)
    monkeypatch.setattr(builds, "LOCK", path)
    monkeypatch.setattr(builds, "shipped", lambda _: path)
    with pytest.raises(LockError, match=r"engines\.lock cannot be read"):
        build_of(ENGINE, RELEASE)


COMPILED = Build(
    package="demo-engine", sources="demo", environment="llama_cpp",
    abi=Abi(headers={}, structs={}, functions={}),
)  # fmt: skip
OWN = {"libllama.so": b"llama", "libggml.so": b"ggml", "libggml-base.so": b"base"}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of libraries that a package has installed, with its record."""
    folder = put(tmp_path / "site/demo_engine/lib", OWN | {"libmtmd.so": b"besides"})
    record = tmp_path / "site/demo_engine-1.0.dist-info/RECORD"
    put(record.parent, {"METADATA": b"Metadata-Version: 2.1\nName: demo-engine\nVersion: 1.0\n"})
    lines = [
        f"demo_engine/lib/{p.name},sha256={recorded_sha256(p).decode()},{p.stat().st_size}"
        for p in folder.iterdir()
    ]
    record.write_text("\n".join([*lines, "demo_engine-1.0.dist-info/RECORD,,"]))
    monkeypatch.syspath_prepend(tmp_path / "site")
    return folder


def test_compiled_libraries_are_those_of_their_record(installed: Path) -> None:
    """A locally compiled build is found in the folder that its installation recorded."""
    assert library_folder(ENGINE, "0.3.36", COMPILED) == installed


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (lambda f: (f / "libggml.so").write_bytes(b"other"), "libggml.so is not what"),
        (lambda f: (f / "libggml.so").unlink(), "libggml.so is not what"),
        (lambda f: (f / "libllama.a.so").touch(), "libllama.a.so is not what"),
        (lambda f: (f / "libggml-cpu.so").touch(), "libggml-cpu.so is not what"),
        (lambda f: [p.unlink() for p in f.parents[1].glob("*/RECORD")], "installed no library"),
    ],
    ids=["changed", "missing", "more", "another", "unrecorded"],
)  # fmt: skip
@pytest.mark.parametrize("answering", ["importlib.metadata", "importlib_metadata"])
def test_compiled_libraries_that_were_changed_are_refused(
    installed: Path, damage: Damage, match: str, answering: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library changed, gone or put beside those of the record is one error, and what to do.

    This holds for importlib.metadata and for its backport.
    """
    damage(installed)
    monkeypatch.setattr(
        metadata.Distribution, "from_name", import_module(answering).Distribution.from_name
    )
    with pytest.raises(LockError, match=match) as caught:
        installed_folder(COMPILED)
    assert "make it again" in caught.value.remedy


def test_a_build_that_is_not_installed_is_named() -> None:
    """In an interpreter without the package, the error says which environment has it."""
    with pytest.raises(LockError, match="is not installed in this interpreter") as caught:
        installed_folder(structs.replace(COMPILED, package="no-such-engine"))
    assert "environment make llama_cpp" in caught.value.remedy


def test_the_real_library_says_what_it_is(real: Real, loaded: Library) -> None:
    """Every library that the process mapped is recorded with the lock's hash."""
    pinned = {Path(path).name: digest for path, digest in real.build.libraries.items()}
    assert loaded.files.items() <= pinned.items()
    stems = {name.partition(".")[0] for name in loaded.files}
    assert {"libllama", "libggml", "libggml-base"} < stems
    assert len([stem for stem in stems if stem.startswith("libggml-cpu-")]) == 1
    assert "CPU" in loaded.system_info


RECORDED = """
import sys
from pathlib import Path
from nearfree.backends.builds import build_of
from nearfree.engines.library import load
build = build_of("llama_cpp", "3.22.1")
print(*sorted(load(Path(sys.argv[1]), build).files))
"""


def test_a_cpu_without_a_library_is_one_error(real: Real, tmp_path: Path) -> None:
    """Where no library of the folder fits this CPU, it is refused with what to do."""
    for path in real.folder.glob("*.so*"):
        if "libggml-cpu-" not in path.name:
            shutil.copy(path, tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", RECORDED, str(tmp_path)],
        capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": str(Path(nearfree.__file__).parents[1])},
    )  # fmt: skip
    assert "EvidenceError: @node-llama-cpp/linux-x64 has no library for this CPU" in done.stderr


def test_a_library_behind_a_link_is_on_record(real: Real, loaded: Library, tmp_path: Path) -> None:
    """Where the cache is a symbolic link, loaded files are still recorded."""
    (tmp_path / "linked").symlink_to(real.folder)
    done = subprocess.run(
        [sys.executable, "-c", RECORDED, str(tmp_path / "linked")],
        capture_output=True, text=True, check=True,
        env=os.environ | {"PYTHONPATH": str(Path(nearfree.__file__).parents[1])},
    )  # fmt: skip
    assert done.stdout.split() == sorted(loaded.files)
