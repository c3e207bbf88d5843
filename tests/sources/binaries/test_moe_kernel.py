"""The MoE kernel's text: pinned, cut to what compiles, with each argument's type."""

import ast
from pathlib import Path

import pytest
from nearfree.errors import ConfigError, SourceError
from nearfree.log.line import sha256
from nearfree.sources.binaries.moe_kernel import (
    HEAD,
    CompileTarget,
    compile_requests,
    extract_kernel,
    pinned_kernel,
    verified_text,
)

LOCK = Path(__file__).parents[3] / "envs" / "kernels.lock"
HELPER = "@triton.jit\ndef write_zeros_to_output(c_ptr, BLOCK_SIZE_M):\n    pass\n"
KERNEL = """@triton.jit
def fused_moe_kernel(
    a_ptr, sorted_token_ids_ptr, a_scale_ptr, N, stride_am, stride_ak, num_valid_tokens,
    BLOCK_SIZE_M: tl.constexpr, BLOCK_SIZE_N: tl.constexpr, BLOCK_SIZE_K: tl.constexpr,
    use_fp8_w8a8: tl.constexpr,
):
    # A remark.
    write_zeros_to_output(a_ptr, BLOCK_SIZE_M)
"""
WHOLE = f"import os\nos.remove('x')\n\n{HELPER}\nprint('loaded')\n\n{KERNEL}\nos.abort()\n"


def test_only_the_kernel_and_its_helper_are_kept() -> None:
    """The loaded text has no import and no other statement."""
    kernel = extract_kernel(WHOLE, "k.py")
    body = ast.parse(kernel.text).body
    assert [ast.unparse(statement) for statement in body[:2]] == HEAD.split("\n")[:2]
    names = [statement.name for statement in body[2:] if isinstance(statement, ast.FunctionDef)]
    assert names == ["write_zeros_to_output", "fused_moe_kernel"]
    assert len(body) == 4
    assert "# A remark." in kernel.text
    assert kernel.arguments[:2] == ("a_ptr", "sorted_token_ids_ptr")


@pytest.mark.parametrize(
    "text",
    [
        "",
        HELPER,
        KERNEL,
        "def (",
        WHOLE.replace("@triton.jit\ndef fused", "@triton.jit\n@os.system\ndef fused"),
        WHOLE.replace("@triton.jit\ndef fused", "@os.system('x')\ndef fused"),
        WHOLE.replace("stride_am,", "stride_am=os.abort(),"),
        WHOLE.replace("use_fp8_w8a8: tl.constexpr", "use_fp8_w8a8: os.abort()"),
        WHOLE.replace("    use_fp8_w8a8: tl.constexpr,\n", "    *rest,\n"),
    ],
)
def test_what_would_run_when_it_is_loaded_is_refused(text: str) -> None:
    """Decorators, defaults and marks other than Triton's are refused."""
    assert text != WHOLE
    with pytest.raises(SourceError):
        extract_kernel(text, "k.py")


def test_only_pinned_files_are_compiled() -> None:
    """A release or a file that the lock does not pin is refused by name."""
    path, digest = pinned_kernel("vllm", "0.20.2", LOCK)
    assert path.endswith("fused_moe.py")
    with pytest.raises(ConfigError, match=r"pins no kernel of vllm 0\.33\.0"):
        pinned_kernel("vllm", "0.33.0", LOCK)
    with pytest.raises(ConfigError, match="pins no kernel of flash-attn"):
        pinned_kernel("flash-attn", "2.8.3", LOCK)
    with pytest.raises(ConfigError, match="pins no kernels"):
        pinned_kernel("vllm", "0.20.2", LOCK.parent / "no.lock")
    with pytest.raises(SourceError, match=r"is not the file that .*kernels\.lock pins"):
        verified_text(b"other", path, digest)
    assert verified_text(b"text", path, sha256(b"text")) == "text"


def test_each_argument_has_a_type_or_a_value() -> None:
    """The compiler gets each argument once, and which numbers 16 divides."""
    kernel = extract_kernel(WHOLE, "k.py")
    (request,) = compile_requests(kernel, [CompileTarget(90, 16, 64, 128, 4, 3)])
    assert set(request["types"]) | set(request["constants"]) == set(kernel.arguments)
    assert not set(request["types"]) & set(request["constants"])
    assert request["types"]["a_ptr"] == "*bf16"
    assert request["types"]["num_valid_tokens"] == "i32"
    assert request["constants"]["a_scale_ptr"] is None
    assert (request["sm"], request["warps"], request["stages"]) == (90, 4, 3)
    sizes = [request["constants"][f"BLOCK_SIZE_{axis}"] for axis in "MNK"]
    assert sizes == [16, 64, 128]
    assert set(request["aligned"]) == {"a_ptr", "sorted_token_ids_ptr", "N", "stride_am"}
