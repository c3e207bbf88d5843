"""The fingerprint of a CPU: stable facts only."""

import platform
from pathlib import Path

import msgspec
import pytest
from nearfree.hardware import identity
from nearfree.hardware.identity import cpu_fingerprint, native_dtype

X86 = """processor\t: 0
model name\t: Fancy CPU 9000
cpu MHz\t\t: {mhz}
flags\t\t: fpu sse avx2 fma avx512f {flags}
bogomips\t: {mhz}

processor\t: 1
model name\t: Fancy CPU 9000
"""
ARM = "processor\t: 0\nFeatures\t: fp asimd bf16 i8mm crc32\nCPU part\t: 0xd4f\n"


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder whose `cpuinfo` and `cache/` stand for the system's."""

    def path(name: str) -> Path:
        return tmp_path / Path(name).name if name == "/proc/cpuinfo" else Path(name)

    monkeypatch.setattr(identity, "Path", path)
    monkeypatch.setattr(identity, "_CACHE", tmp_path / "cache")
    (tmp_path / "cpuinfo").write_text(X86.format(mhz=2000.0, flags=""))
    return tmp_path


def test_two_calls_give_the_same_fingerprint() -> None:
    """The same machine has the same fingerprint each time."""
    assert cpu_fingerprint() == cpu_fingerprint()


def test_the_fingerprint_has_stable_fields_only() -> None:
    """The fingerprint holds no kernel version and no name of the host, and five fields alone."""
    text = msgspec.json.encode(cpu_fingerprint()).decode()
    assert platform.release() not in text
    assert platform.version() not in text
    assert set(msgspec.json.decode(text)) == {"kind", "model", "features", "cores", "caches"}


def test_load_and_clock_do_not_change_it(fake: Path) -> None:
    """Another clock rate, as under load, gives the same fingerprint; another feature does not."""
    before = cpu_fingerprint()
    (fake / "cpuinfo").write_text(X86.format(mhz=3999.9, flags=""))
    assert cpu_fingerprint() == before
    (fake / "cpuinfo").write_text(X86.format(mhz=2000.0, flags="amx_bf16"))
    assert cpu_fingerprint() != before


def test_an_x86_machine(fake: Path) -> None:
    """The model and the features that change kernels are read, sorted, from /proc/cpuinfo."""
    fingerprint = cpu_fingerprint()
    assert (fingerprint.kind, fingerprint.model) == ("cpu", "Fancy CPU 9000")
    assert fingerprint.features == ("avx2", "avx512f", "fma")


def test_an_arm_machine(fake: Path) -> None:
    """A machine without a model name is named by its architecture and part."""
    (fake / "cpuinfo").write_text(ARM)
    fingerprint = cpu_fingerprint()
    assert fingerprint.model == f"{platform.machine()} 0xd4f"
    assert fingerprint.features == ("asimd", "bf16", "i8mm")


def test_a_mac(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without /proc the model and features come from sysctl."""
    answers = {"machdep.cpu.brand_string": "Apple M9", "hw.optional.arm.FEAT_BF16": "1"}
    (fake / "cpuinfo").unlink()
    (fake / "sysctl").write_text("#!/bin/sh\ncase $2 in\n" + "".join(
        f"{name}) echo '{value}';;\n" for name, value in answers.items()
    ) + "esac\n")  # fmt: skip
    (fake / "sysctl").chmod(0o755)
    monkeypatch.setenv("PATH", str(fake), prepend=":")
    fingerprint = cpu_fingerprint()
    assert (fingerprint.model, fingerprint.features) == ("Apple M9", ("bf16",))
    assert native_dtype(fingerprint) == "bfloat16"


def test_caches_are_in_bytes(fake: Path) -> None:
    """Cache sizes are read in bytes, by level and kind; a machine that hides them has none."""
    assert cpu_fingerprint().caches == {}
    caches = [("1", "Data", "48K"), ("1", "Instruction", "32K"), ("2", "Unified", "2048K")]
    for index, facts in enumerate([*caches, ("3", "Unified", "105M")]):
        folder = fake / "cache" / f"index{index}"
        folder.mkdir(parents=True)
        for name, value in zip(("level", "type", "size"), facts, strict=True):
            (folder / name).write_text(f"{value}\n")
    assert cpu_fingerprint().caches == {
        "l1d": 48 * 1024,
        "l1i": 32 * 1024,
        "l2": 2 * 1024**2,
        "l3": 105 * 1024**2,
    }


@pytest.mark.parametrize(
    ("feature", "dtype"),
    [("avx512_bf16", "bfloat16"), ("amx_bf16", "bfloat16"), ("bf16", "bfloat16"),
     ("avx512f", "float32"), ("avx512_fp16", "float32")],
)  # fmt: skip
def test_the_native_dtype(feature: str, dtype: str) -> None:
    """A CPU's own dtype is float32 without instructions for bfloat16; a GPU's is bfloat16."""
    print_ = msgspec.structs.replace(cpu_fingerprint(), features=("avx2", feature))
    assert native_dtype(print_) == dtype
    assert native_dtype(msgspec.structs.replace(print_, kind="cuda")) == "bfloat16"
