"""What public tables call the kernels that run experts."""

from nearfree.backends.public_kernels import public_kernel


def test_mxfp4_experts_run_by_the_kernel_of_their_model() -> None:
    """gpt-oss and DeepSeek V4 have kernels of their own names; of another model none is told."""

    def named(version: str, sm: int, model_type: str) -> str | None:
        return public_kernel("vllm", version, "mxfp4", sm, model_type=model_type)

    assert "mxfp4_mxfp8_trtllm" in str(named("0.33.0", 100, "deepseek_v4"))
    assert "gptoss" in str(named("0.33.0", 100, "gpt_oss"))
    assert "marlin" in str(named("0.24.0", 90, "deepseek_v4"))
    assert "oaitriton" in str(named("0.24.0", 90, "gpt_oss"))
    assert named("0.33.0", 90, "deepseek_v4") is None  # Humming's, which no public table names
    assert named("0.24.0", 90, "llama") is None
