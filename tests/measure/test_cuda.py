"""The GPU harness, on stand-ins for a GPU: what it captures, replays and refuses.

The calls into torch are checked against torch's own signatures, and the logic runs on stand-ins for
streams, events and graphs.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest
import torch
from nearfree.errors import ConfigError, EvidenceError, HardwareError
from nearfree.measure import cuda
from nearfree.measure.cuda import CudaTimer, launch_floor

from measure.machines import FakeKernel


class Stream:
    def wait_stream(self, _other: object) -> None:
        """Wait for nothing."""


class Event:
    """An event whose pair is four milliseconds apart."""

    def __init__(self, enable_timing: bool = False) -> None:  # noqa: FBT001, FBT002 (as torch's)
        assert enable_timing
        self.recorded = False

    def record(self) -> None:
        self.recorded = True

    def synchronize(self) -> None:
        assert self.recorded

    def elapsed_time(self, end: "Event") -> float:
        assert self.recorded
        assert end.recorded
        return 4.0


class Graph:
    """A graph that notes how often it was replayed."""

    made: ClassVar[list["Graph"]] = []

    def __init__(self) -> None:
        self.replays = 0
        Graph.made.append(self)

    def replay(self) -> None:
        self.replays += 1


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace torch.cuda's classes with stand-ins that have the same signatures."""

    @contextmanager
    def bound(real: Any, *args: object, **kwargs: object) -> Iterator[None]:
        inspect.signature(real).bind(*args, **kwargs)
        yield

    real_graph, real_stream = torch.cuda.graph, torch.cuda.stream
    monkeypatch.setattr(torch.cuda, "graph", lambda *a, **k: bound(real_graph, *a, **k))
    monkeypatch.setattr(torch.cuda, "stream", lambda *a, **k: bound(real_stream, *a, **k))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    Graph.made.clear()


def test_a_graph_is_captured_once_for_each_n() -> None:
    """The first visit of an N warms it up and captures its forwards; later ones replay."""
    timer, kernel = CudaTimer("graph", 20), FakeKernel()
    for _ in range(3):
        timer.warm(kernel, 4)  # type: ignore[arg-type]
        timer.sample(kernel, 4)  # type: ignore[arg-type]
    assert kernel.calls == [4] * (3 + 20)
    assert [graph.replays for graph in Graph.made] == [3 + 2 * 3]
    timer.sample(kernel, 8)  # type: ignore[arg-type]
    assert len(Graph.made) == 2


@pytest.mark.parametrize(("copies", "warm_ups"), [(2, 3), (5, 5)])
def test_every_copy_has_run_before_a_capture(copies: int, warm_ups: int) -> None:
    """A copy plans at its first forward of an N, which no graph can hold."""
    kernel = FakeKernel()
    CudaTimer("graph", 20, copies).warm(kernel, 4)  # type: ignore[arg-type]
    assert kernel.calls == [4] * (warm_ups + 20)


def test_a_sample_is_the_mean_of_a_graphs_forwards() -> None:
    """Four milliseconds for twenty forwards are 200 us a forward."""
    sample = CudaTimer("graph", 20).sample(FakeKernel(), 1)  # type: ignore[arg-type]
    assert sample.wall_us == 200.0
    assert not sample.dirty


def test_eager_forwards_are_timed_one_by_one() -> None:
    """Without a graph a sample is one forward."""
    timer, kernel = CudaTimer("eager", 20), FakeKernel()
    assert timer.forwards_a_sample == 1
    assert timer.sample(kernel, 1).wall_us == 4000.0  # type: ignore[arg-type]
    assert kernel.calls == [1]
    assert not Graph.made


def test_a_graph_uses_every_copy_alike() -> None:
    """A graph whose forwards do not use all copies equally often would read some of them hot."""
    CudaTimer("graph", 20, 2)
    CudaTimer("eager", 20, 3)
    with pytest.raises(ConfigError, match="20 forwards does not use 3 copies alike"):
        CudaTimer("graph", 20, 3)


def test_a_forward_that_cannot_be_captured_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A capture that fails names the forward's own error, and puts the stream back."""

    class Fragile(FakeKernel):
        def forward(self, n: int) -> None:
            super().forward(n)
            if len(self.calls) > 3:
                raise RuntimeError("cannot wait for the host\nmore")

    @contextmanager
    def capture(_graph: Graph, pool: object) -> Iterator[None]:
        try:
            yield
        finally:
            raise RuntimeError("CUDA error: operation failed due to a previous error")

    put_back: list[object] = []
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(torch.cuda, "set_stream", put_back.append)
    with pytest.raises(
        EvidenceError, match=r"over N=4 .* graph: cannot wait for the host\."
    ) as refusal:
        CudaTimer("graph", 20).sample(Fragile(), 4)  # type: ignore[arg-type]
    assert "launch: eager" in refusal.value.remedy
    assert len(put_back) == 1


@pytest.mark.parametrize(
    ("launch", "wall_us", "fits"),
    [("eager", 2.4, False), ("eager", 2.6, True), ("graph", 0.2, True), ("graph", 0.1, False)],
)
def test_a_time_below_the_resolution_is_refused(launch: Any, wall_us: float, fits: bool) -> None:  # noqa: FBT001
    """A sample under five ticks of half a microsecond is refused, unless a graph batches it."""
    timer = CudaTimer(launch, 20)
    if fits:
        timer.check(wall_us)
    else:
        with pytest.raises(HardwareError, match="ticks of CUDA events"):
            timer.check(wall_us)


def test_the_launch_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    """The floor is the median of forwards that compute next to nothing, both ways."""

    def zeros(*shape: int, device: str) -> torch.Tensor:
        return torch.ones(*shape, device="cpu" if device == "cuda" else device)

    monkeypatch.setattr(cuda.torch, "zeros", zeros)
    floor = launch_floor(20)
    assert (floor.eager_us, floor.graph_us, len(floor.samples)) == (4000.0, 200.0, 50)


def test_the_flash_op_has_the_arguments_that_are_given() -> None:
    """The FlashAttention op takes ten positional arguments in the order that the adapter has."""
    schema = torch.ops.aten._flash_attention_forward.default._schema
    names = [argument.name for argument in schema.arguments]
    assert names[:10] == [
        "query", "key", "value", "cum_seq_q", "cum_seq_k", "max_q", "max_k", "dropout_p",
        "is_causal", "return_debug_mask",
    ]  # fmt: skip
