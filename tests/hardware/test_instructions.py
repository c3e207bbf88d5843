"""The instructions of this machine's CPU."""

from pathlib import Path

import pytest
from nearfree.errors import HardwareError
from nearfree.hardware.instructions import cpu_flags, plain


def test_flags_are_spelt_plainly(tmp_path: Path) -> None:
    """The first processor's flags are read, without underscores and other separators."""
    path = tmp_path / "cpuinfo"
    path.write_text("processor : 0\nflags\t\t: avx sse4_2 avx512_bf16\n\nflags : none\n")
    assert cpu_flags(path) == {"avx", "sse42", "avx512bf16"}
    assert plain(" AVX512-BF16") == plain("avx512_bf16") == "avx512bf16"


@pytest.mark.parametrize("text", [None, "Features : asimd\n"])
def test_a_system_that_says_no_flags_is_refused(tmp_path: Path, text: str | None) -> None:
    """Without flags, the message names the option that gives them."""
    path = tmp_path / "cpuinfo"
    if text is not None:
        path.write_text(text)
    with pytest.raises(HardwareError, match="--cpu-flags"):
        cpu_flags(path)
