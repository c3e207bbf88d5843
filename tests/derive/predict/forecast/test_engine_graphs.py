"""The engine whose CUDA graphs a deployment's steps run in."""

import pytest
from nearfree.backends.names import BackendRelease
from nearfree.config.files import DeploymentSpec
from nearfree.core.parallel import Parallel
from nearfree.derive.granularity.graphs import Graphs
from nearfree.derive.predict.forecast.engine_graphs import graphs_of
from nearfree.derive.predict.forecast.expand_deployments import expand
from nearfree.errors import ConfigError

from derive.predict.forecast.pool import CONFIG

FLASH_ATTN = BackendRelease("flash_attn", "2.8.3")


def graphs(moe: BackendRelease, named: str = "engine") -> Graphs | None:
    """Return the graphs of experts' engine on an H100."""
    spec = DeploymentSpec(models=("qwen3_30b_a3b",), platforms=("h100",), graphs=named)
    return graphs_of(CONFIG, spec, "h100", Parallel(), attention=FLASH_ATTN, moe=moe)


def test_an_engine_whose_graphs_are_not_read_pads_no_step() -> None:
    """TensorRT-LLM's graphs are unknown, so no step is padded."""
    graph_question = graphs(BackendRelease("vllm", "0.33.0"))
    assert graph_question is not None
    assert graph_question.engine == BackendRelease("vllm", "0.33.0")
    assert graphs(BackendRelease("trtllm", "1.2.0")) is None


@pytest.mark.parametrize("named", ["tensorrt-llm==1.2.0", "eager==1.0", "eager", "vllm=0.33.0"])
def test_graphs_that_are_not_read_are_refused_by_name(named: str) -> None:
    """The remedy names engines whose graphs are read, and no other backend."""
    spec = DeploymentSpec(models=("qwen3_30b_a3b",), platforms=("h100",), graphs=named)
    with pytest.raises(ConfigError, match="is no engine with CUDA graphs that are read") as why:
        expand(CONFIG, spec)
    assert why.value.remedy == "Name one of vllm, sglang as package==version, or none"
