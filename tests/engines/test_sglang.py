"""SGLang's model runner: the arguments of each forward, bound against the lock's release."""

from collections.abc import Callable
from inspect import BoundArguments, Signature
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from backends.adapters.signatures import bring, signature, signature_of, stand_in
from nearfree.engines.sglang import SglangForward
from nearfree.errors import EvidenceError
from nearfree.sources.fetching.cache import Cache, default_cache

from engines.serving import context, installed, lines, record, release, setting, weights_of

TEXT = """
class ServerArgs:
    model_path: str
    dtype: str = "auto"
    load_format: str = "auto"
    skip_tokenizer_init: bool = False
    context_length: int = None
    max_running_requests: int = None
    cuda_graph_bs: list = None
    page_size: int = None
    speculative_algorithm: str = None
    speculative_num_draft_tokens: int = None
    speculative_ngram_max_bfs_breadth: int = 10
    mem_fraction_static: float = 0.8
    disable_cuda_graph: bool = False
    def get_attention_backends(self):
        pass
class PortArgs:
    def init_new(server_args, dp_rank=None):
        pass
    init_new = staticmethod(init_new)
class ModelConfig:
    @staticmethod
    def from_server_args(server_args, model_path=None):
        pass
class ModelRunner:
    def __init__(self, model_config, mem_fraction_static, gpu_id, tp_rank, tp_size, moe_ep_rank,
                 moe_ep_size, pp_rank, pp_size, nccl_port, server_args, dp_rank=None):
        pass
    def forward(self, forward_batch, skip_attn_backend_init=False):
        pass
    def init_attention_backend(self):
        pass
    def init_device_graphs(self):
        pass
class ForwardBatch:
    @classmethod
    def init_new(cls, batch, model_runner):
        pass
class ScheduleBatch:
    def merge_batch(self, other):
        pass
    def get_model_worker_batch(self, seq_lens_cpu_cache=None):
        pass
class NgramVerifyInput:
    def __init__(self, draft_token, tree_mask, positions, retrive_index, retrive_next_token,
                 retrive_next_sibling, draft_token_num, grammar=None):
        pass
def extend(reqs, model_runner):
    pass
def prepare_synthetic_inputs_for_latency_test(batch_size, input_len, custom_inputs=None):
    pass
def alloc_token_slots(tree_cache, num_tokens, backup_state=False):
    pass
"""
_RUNNER = "sglang/srt/model_executor/model_runner.py"
_FILES = {
    "ServerArgs": "sglang/srt/server_args.py",
    "ServerArgs.get_attention_backends": "sglang/srt/server_args.py",
    "PortArgs.init_new": "sglang/srt/server_args.py",
    "ModelConfig.from_server_args": "sglang/srt/configs/model_config.py",
    "ModelRunner": _RUNNER,
    "ModelRunner.forward": _RUNNER,
    "ModelRunner.init_attention_backend": _RUNNER,
    "ModelRunner.init_device_graphs": _RUNNER,
    "ForwardBatch.init_new": "sglang/srt/model_executor/forward_batch_info.py",
    "ScheduleBatch.merge_batch": "sglang/srt/managers/schedule_batch.py",
    "ScheduleBatch.get_model_worker_batch": "sglang/srt/managers/schedule_batch.py",
    "NgramVerifyInput": "sglang/srt/speculative/ngram_info.py",
    "extend": "sglang/bench_one_batch.py",
    "prepare_synthetic_inputs_for_latency_test": "sglang/bench_one_batch.py",
    "alloc_token_slots": "sglang/srt/mem_cache/common.py",
}
KNOWN = {name: signature_of(TEXT, name) for name in _FILES}
PAGE, WIDTH, VOCABULARY = 1, 64, 1000


class Engine:
    """A stand-in for SGLang: cache slots, request tables and batches."""

    def __init__(self, signatures: dict[str, Signature], page: int = PAGE) -> None:
        self._known, self._page = signatures, page
        self.pool = torch.zeros(8, WIDTH, dtype=torch.int32)
        self.slots = iter(range(1, 1000))
        self.forwards: list[Any] = []
        self.graph: Any = None
        self.servers: list[tuple[str, int | None]] = []
        self.args: Any = None
        self.given: set[str] = set()
        self.bad = False

    def _bound(self, name: str, result: Callable[[BoundArguments], Any]) -> Any:
        return stand_in(self._known[name], result)

    def modules(self) -> dict[str, dict[str, Any]]:
        """Return the modules that the adapter imports."""
        extend = self._bound("extend", self._extend)
        prompts = "prepare_synthetic_inputs_for_latency_test"
        made = self._bound(prompts, lambda bound: list(bound.arguments["custom_inputs"]))
        kinds = {"SpeculativeAlgorithm": SimpleNamespace(NGRAM="NGRAM", NONE="NONE")}
        modes = SimpleNamespace(DECODE="DECODE", TARGET_VERIFY="TARGET_VERIFY")
        batches = SimpleNamespace(init_new=self._bound("ForwardBatch.init_new", self._inputs))
        ports = self._bound("PortArgs.init_new", lambda _: SimpleNamespace(nccl_port=1))
        models = self._bound("ModelConfig.from_server_args", lambda _: SimpleNamespace())
        return {
            "sglang.bench_one_batch": {"extend": extend, prompts: made},
            "sglang.srt.server_args": {
                "ServerArgs": self._bound("ServerArgs", self._server_args),
                "PortArgs": SimpleNamespace(init_new=ports),
            },
            _RUNNER.removesuffix(".py").replace("/", "."): {
                "ModelRunner": self._bound("ModelRunner", self._runner)
            },
            "sglang.srt.configs.model_config": {
                "ModelConfig": SimpleNamespace(from_server_args=models)
            },
            "sglang.srt.model_executor.forward_batch_info": {
                "ForwardBatch": batches,
                "ForwardMode": modes,
            },
            "sglang.srt.speculative.spec_info": kinds,
            "sglang.srt.speculative.ngram_info": {
                "NgramVerifyInput": record(self._known["NgramVerifyInput"])
            },
            "sglang.srt.mem_cache.common": {
                "alloc_token_slots": self._bound(
                    "alloc_token_slots", lambda bound: self._free(bound.arguments["num_tokens"])
                )
            },
        }

    def _free(self, count: int) -> torch.Tensor:
        return torch.tensor([next(self.slots) for _ in range(count)])

    def _server_args(self, bound: BoundArguments) -> Any:
        self.given = set(bound.arguments)
        bound.apply_defaults()
        self.args = SimpleNamespace(**bound.arguments)
        self.args.page_size = self._page
        backends = self._bound("ServerArgs.get_attention_backends", lambda _: ("fa3", "fa3"))
        self.args.get_attention_backends = backends
        self.args.mem_fraction_static, self.args.disable_cuda_graph = 0.8, False
        return self.args

    def _runner(self, bound: BoundArguments) -> Any:
        runner = SimpleNamespace(
            spec_algorithm=bound.arguments["server_args"].speculative_algorithm,
            req_to_token_pool=SimpleNamespace(req_to_token=self.pool),
            model=SimpleNamespace(parameters=lambda: iter(weights_of(2, 300))),
            attn_backend=None,
            graph_runner=None,
        )

        def attention(_: BoundArguments) -> None:
            runner.attn_backend = ("attention", self.args.speculative_num_draft_tokens)

        def graphs(_: BoundArguments) -> None:
            runner.graph_runner = (runner.spec_algorithm, self.args.speculative_num_draft_tokens)
            self.servers.append(runner.graph_runner)

        runner.init_attention_backend = self._bound("ModelRunner.init_attention_backend", attention)
        runner.init_device_graphs = self._bound("ModelRunner.init_device_graphs", graphs)
        runner.forward = self._bound("ModelRunner.forward", self._forward)
        return runner

    def _extend(self, bound: BoundArguments) -> Any:
        (tokens,) = bound.arguments["reqs"]
        row = int((self.pool[:, 0] == 0).nonzero()[0])
        self.pool[row, : len(tokens)] = self._free(len(tokens)).to(torch.int32)
        length = torch.tensor([len(tokens)])
        batch = _Batch(
            known=self._known,
            reqs=[tokens],
            req_pool_indices=torch.tensor([row]),
            seq_lens=length,
            seq_lens_cpu=length.clone(),
            orig_seq_lens=length.clone(),
            seq_lens_sum=len(tokens),
            spec_info=None,
            tree_cache=object(),
        )
        return None, None, batch

    def _inputs(self, bound: BoundArguments) -> Any:
        return SimpleNamespace(
            **vars(bound.arguments["batch"]), runner=bound.arguments["model_runner"]
        )

    def _forward(self, bound: BoundArguments) -> Any:
        batch = bound.arguments["forward_batch"]
        assert not torch.is_grad_enabled()
        self.forwards.append(batch)
        self.graph = batch.runner.graph_runner
        logits = torch.zeros(len(batch.input_ids), VOCABULARY)
        logits[0, 0] = float("inf") if self.bad else 0.0
        return SimpleNamespace(logits_output=SimpleNamespace(next_token_logits=logits))


class _Batch(SimpleNamespace):
    """A stand-in for `ScheduleBatch`: tensors of its requests, and the worker's batch."""

    known: dict[str, Signature]

    def merge_batch(self, *args: Any, **kwargs: Any) -> None:
        """Take another batch's requests in."""
        other = self.known["ScheduleBatch.merge_batch"].bind(*args, **kwargs).arguments["other"]
        for name in ("req_pool_indices", "seq_lens", "seq_lens_cpu", "orig_seq_lens"):
            setattr(self, name, torch.cat([getattr(self, name), getattr(other, name)]))
        self.seq_lens_sum += other.seq_lens_sum
        self.reqs = [*self.reqs, *other.reqs]

    def get_model_worker_batch(self, *args: Any, **kwargs: Any) -> SimpleNamespace:
        """Return its fields."""
        self.known["ScheduleBatch.get_model_worker_batch"].bind(*args, **kwargs)
        return SimpleNamespace(**vars(self))


Make = Callable[..., tuple[SglangForward, Engine]]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Make:
    """Return a function that makes the adapter over an engine of some signatures."""

    def made(
        signatures: dict[str, Signature] = KNOWN,
        positions: tuple[int, ...] = (1, 2, 5),
        page: int = PAGE,
        **changes: Any,
    ) -> tuple[SglangForward, Engine]:
        engine = Engine(signatures, page)
        installed(monkeypatch, "sglang", **engine.modules())
        forward = SglangForward(setting("sglang", **changes), positions, context("sglang"))
        return forward, engine

    return made


def check_forwards(forward: SglangForward, engine: Engine) -> None:
    """Assert that each forward is over N new positions of both requests, L being cached."""
    for n in (1, 5, 2, 5, 1):
        assert forward.forward(n).shape == (2 * n, VOCABULARY)
        batch = engine.forwards[-1]
        assert engine.graph == (("NGRAM", n) if n > 1 else ("NONE", None))
        assert batch.forward_mode == ("TARGET_VERIFY" if n > 1 else "DECODE")
        assert batch.spec_algorithm == ("NGRAM" if n > 1 else "NONE")
        assert batch.seq_lens.tolist() == batch.seq_lens_cpu.tolist() == [40 + (n == 1)] * 2
        assert batch.orig_seq_lens.tolist() == batch.seq_lens.tolist()
        assert batch.seq_lens_sum == sum(batch.seq_lens.tolist())
        table = engine.pool[batch.req_pool_indices, 40 : 40 + n]
        assert batch.out_cache_loc.tolist() == table.flatten().tolist()
        assert 0 <= int(batch.input_ids.min()) <= int(batch.input_ids.max()) < VOCABULARY
    assert sorted(engine.servers, key=str) == [("NGRAM", 2), ("NGRAM", 5), ("NONE", None)]


def test_a_forward_is_over_n_positions(make: Make) -> None:
    """N = 1 is a decode forward, N > 1 one that verifies; each N has a server's own graph."""
    forward, engine = make()
    check_forwards(forward, engine)


def test_no_slot_is_used_twice(make: Make) -> None:
    """The cache of L positions and the N new ones of every request have slots of their own."""
    _, engine = make()
    held = engine.pool[:2, :45].flatten().tolist()
    assert len(set(held)) == 90
    assert 0 not in held


@pytest.mark.parametrize("n", [2, 5])
def test_drafts_are_a_chain(make: Make, n: int) -> None:
    """A draft sees the cache, the drafts before it and itself; each one's successor is the next."""
    forward, engine = make()
    forward.forward(n)
    info = engine.forwards[-1].spec_info
    mask = info.tree_mask.view(2, n, 40 + n)
    expected = torch.cat([torch.ones(n, 40), torch.ones(n, n).tril()], dim=1).bool()
    assert all(torch.equal(row, expected) for row in mask)
    assert info.positions.view(2, n).tolist() == [list(range(40, 40 + n))] * 2
    assert info.retrive_index.flatten().tolist() == list(range(2 * n))
    assert info.retrive_next_token.tolist() == [[*range(1, n), -1]] * 2
    assert set(info.retrive_next_sibling.flatten().tolist()) == {-1}
    assert (info.draft_token_num, info.draft_token.tolist()) == (
        n, engine.forwards[-1].input_ids.tolist()
    )  # fmt: skip


def test_a_study_of_one_position_configures_no_drafting(make: Make) -> None:
    """A study of N = 1 is of a server that does not draft."""
    _, engine = make(positions=(1,))
    assert "speculative_algorithm" not in engine.given


def test_pages_of_several_positions_are_refused(make: Make) -> None:
    """An engine that takes larger pages than it is asked for is not measured."""
    with pytest.raises(EvidenceError, match="pages of 64 positions"):
        make(page=64)


def test_logits_are_checked(make: Make) -> None:
    """A forward whose logits are not finite is told from one whose logits are."""
    forward, engine = make()
    assert forward.finite(2)
    engine.bad = True
    assert not forward.finite(2)


def test_what_ran_is_on_record(make: Make) -> None:
    """The engine's own choices are recorded."""
    loaded = make()[0].loaded()
    assert (loaded.engine, loaded.release) == ("sglang", release("sglang"))
    assert loaded.weights_bytes == 1200
    assert loaded.system_info == (
        "attention fa3, of prefills fa3; CUDA graphs of 2 requests, one for each N"
    )


@pytest.mark.slow
def test_calls_bind_against_the_release_of_the_lock(make: Make) -> None:
    """Each call of a forward, of loading and of prefilling has the form of the lock's release."""
    cache = Cache(default_cache())
    real = {
        name: signature("sglang", release("sglang"), file, name, cache)
        for name, file in _FILES.items()
    }
    forward, engine = make(real)
    check_forwards(forward, engine)


@pytest.mark.slow
def test_the_runner_keeps_what_forwards_rely_on() -> None:
    """The runner's source has the graph and mode of a server that drafts N - 1 tokens."""
    folder = "sglang/srt"
    texts_by_file = {
        f"{folder}/model_executor/cuda_graph_runner.py": (
            "or model_runner.spec_algorithm.is_ngram()",
            "self.num_tokens_per_bs = ( self.model_runner.server_args.speculative_num_draft_tokens",
        ),
        f"{folder}/model_executor/model_runner.py": (
            "self.attn_backend = self._get_attention_backend()",
            "self.graph_runner = graph_runners[self.device](self)",
            "and self.graph_runner.can_run(forward_batch)",
        ),
        f"{folder}/model_executor/forward_batch_info.py": (
            "ret.positions = ret.spec_info.positions",
            "attn_backend=model_runner.attn_backend",
        ),
        f"{folder}/speculative/ngram_worker.py": (
            "req_mask = torch.ones((self.draft_token_num, seq_len - 1)).cuda()",
            "batch.forward_mode = ForwardMode.TARGET_VERIFY",
        ),
    }
    sources = bring("sglang", release("sglang"), list(texts_by_file), Cache(default_cache()))
    for path, wanted in texts_by_file.items():
        lines(sources.text(path), *wanted)
