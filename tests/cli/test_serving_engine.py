"""`--engine vllm`, sglang or trtllm in answers about GPUs: the same as `--moe`."""

import pytest

from cli.conftest import Call

H200 = ("--model", "qwen3_30b_a3b", "--platform", "h200")


@pytest.mark.parametrize(
    ("engine", "moe"),
    [
        (("vllm",), "vllm"),
        (("vLLM==0.20.2",), "vllm==0.20.2"),
        (("sglang", "--release", "0.5.9"), "sglang==0.5.9"),
        (("TensorRT-LLM",), "trtllm"),
    ],
)
@pytest.mark.parametrize("command", ["predict", "lookup", "surface"])
def test_an_engine_on_gpus_is_the_backend_of_moe_layers(
    call: Call, command: str, engine: tuple[str, ...], moe: str
) -> None:
    """The answer is that of `--moe`, to the letter."""
    by_engine = call(command, *H200, "--engine", *engine)
    assert by_engine == call(command, *H200, "--moe", moe)
    assert by_engine[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("vllm", "--moe", "sglang"), "--moe has no effect with --engine"),
        (("vllm==0.20.2", "--release", "0.9.1"), "--engine vllm==0.20.2 names a release, and"),
        (("vllm", "--release", "latest"), "vllm==latest"),
        (("vllm==",), "vllm=="),
        (("vllm", "--threads", "2"), "--threads has no effect on a GPU, where vllm runs"),
        (("tgi",), "the engine 'tgi' is unknown. Choose llama_cpp"),
    ],
)
def test_contradictions_are_refused(call: Call, options: tuple[str, ...], message: str) -> None:
    """One message names the options that contradict each other, or what is unknown."""
    code, out, err = call("predict", *H200, "--engine", *options)
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


@pytest.mark.parametrize("option", ["--engine", "--release"])
def test_the_table_of_the_configured_deployments_takes_no_engine(call: Call, option: str) -> None:
    """Its deployments name their own backends."""
    code, out, err = call("lookup", option, "vllm")
    assert (code, out) == (2, "")
    assert f"{option} has no effect without --model and --platform" in err


@pytest.mark.parametrize("command", ["lookup", "surface"])
def test_a_release_needs_an_engine(call: Call, command: str) -> None:
    """A release alone says nothing, and is not dropped in silence."""
    code, out, err = call(command, *H200, "--release", "0.20.2")
    assert (code, out) == (2, "")
    assert "--release has no effect without --engine" in err


@pytest.mark.parametrize("command", ["lookup", "surface"])
@pytest.mark.parametrize("engine", ["llama_cpp", "tgi"])
def test_tables_are_of_engines_on_gpus(call: Call, command: str, engine: str) -> None:
    """Another engine is refused by name, not left out."""
    code, out, err = call(command, *H200, "--engine", engine)
    assert (code, out) == (2, "")
    assert engine in err


SCHEDULE = ("--model", "qwen3_8b", "--platform", "h200", "--largest-batch", "16")


@pytest.mark.parametrize("release", ["vllm==0.20.2", "sglang==0.5.9"])
def test_a_schedule_is_of_the_release_that_its_engine_names(call: Call, release: str) -> None:
    """The option and its evidence are those of `--moe`."""
    engine = release.partition("==")[0]
    by_release = call("schedule", release, *SCHEDULE)
    assert by_release == call("schedule", engine, *SCHEDULE, "--moe", release)
    assert by_release[0] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("vllm==0.20.2", "--moe", "sglang"), "--moe has no effect with vllm==0.20.2"),
        (("vllm==",), "'vllm==' names no backend"),
        (("llama.cpp==1",), "'llama.cpp==1' names a release"),
        (("trtllm",), "invalid choice: 'trtllm' (choose from 'vllm', 'sglang', 'llama.cpp')"),
    ],
)
def test_a_schedule_refuses_releases_without_an_option(
    call: Call, options: tuple[str, ...], message: str
) -> None:
    """One message says what is wrong with the engine's text."""
    code, out, err = call("schedule", *options, *SCHEDULE)
    assert (code, out) == (2, "")
    assert message in err
