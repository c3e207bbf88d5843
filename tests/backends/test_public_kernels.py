"""What public tables call the kernels that run experts."""

from nearfree.backends.public_kernels import MARLINS, public_kernel


def test_mxfp4_experts_run_by_the_kernel_of_their_model() -> None:
    """gpt-oss and DeepSeek V4 have kernels of their own names; of others only Marlin has one."""

    def named(version: str, sm: int, model_type: str) -> str | None:
        return public_kernel("vllm", version, "mxfp4", sm, model_type=model_type)

    assert "mxfp4_mxfp8_trtllm" in str(named("0.33.0", 100, "deepseek_v4"))
    assert "gptoss" in str(named("0.33.0", 100, "gpt_oss"))
    assert "marlin" in str(named("0.24.0", 90, "deepseek_v4"))
    assert "oaitriton" in str(named("0.24.0", 90, "gpt_oss"))
    assert named("0.33.0", 90, "deepseek_v4") is None  # Humming's, which no public table names
    assert named("0.24.0", 100, "llama") is None


def test_marlin_has_a_name_in_every_format() -> None:
    """Where no public table has Marlin's experts in a format, they go by those in int4."""
    by_int4 = public_kernel("vllm", "0.24.0", "int4", 80)
    assert by_int4 in MARLINS
    for dtype in ("fp8", "fp8_block", "nvfp4"):
        assert public_kernel("vllm", "0.24.0", dtype, 80) == by_int4
    own = public_kernel("vllm", "0.24.0", "mxfp4", 80, model_type="llama")
    assert own in MARLINS
    assert own != by_int4
    assert public_kernel("vllm", "0.24.0", "nvfp4", 100) not in MARLINS
