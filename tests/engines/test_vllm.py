"""vLLM's model runner: the arguments of each step, bound against the lock's release."""

from collections.abc import Callable
from gc import collect
from inspect import BoundArguments, Signature
from types import SimpleNamespace
from typing import Any
from weakref import finalize

import pytest
import torch
from backends.adapters.signatures import StandIn, bring, signature, signature_of, stand_in
from nearfree.engines import vllm
from nearfree.engines.vllm import VllmForward
from nearfree.errors import EvidenceError
from nearfree.sources.fetching.cache import Cache, default_cache

from engines.serving import context, installed, lines, record, release, setting, weights_of

TEXT = """
class LLM:
    def __init__(self, model, *, skip_tokenizer_init=False, dtype="auto", seed=0, **kwargs):
        pass
class EngineArgs:
    load_format: str = "auto"
    max_model_len: int = None
    max_num_seqs: int = None
    max_num_batched_tokens: int = None
    enable_prefix_caching: bool = None
    async_scheduling: bool = None
    speculative_config: dict = None
class SamplingParams:
    temperature: float = 1.0
class NewRequestData:
    req_id: str
    prompt_token_ids: list
    mm_features: list
    sampling_params: object
    pooling_params: object
    block_ids: tuple
    num_computed_tokens: int
    lora_request: object
    prompt_embeds: object = None
class CachedRequestData:
    req_ids: list
    resumed_req_ids: set
    new_token_ids: list
    all_token_ids: dict
    new_block_ids: list
    num_computed_tokens: list
    num_output_tokens: list
class SchedulerOutput:
    scheduled_new_reqs: list
    scheduled_cached_reqs: object
    num_scheduled_tokens: dict
    total_num_scheduled_tokens: int
    scheduled_spec_decode_tokens: dict
    scheduled_encoder_inputs: dict
    num_common_prefix_blocks: list
    finished_req_ids: set
    free_encoder_mm_hashes: list
    preempted_req_ids: set = None
class UniProcExecutor:
    def execute_model(self, scheduler_output, non_block=False):
        pass
    def sample_tokens(self, grammar_output, non_block=False):
        pass
class NgramProposer:
    def propose(self, sampled_token_ids, num_tokens_no_spec, token_ids_cpu, slot_mappings=None):
        pass
"""
_FILES = {
    "LLM": "vllm/entrypoints/llm.py",
    "EngineArgs": "vllm/engine/arg_utils.py",
    "SamplingParams": "vllm/sampling_params.py",
    "NewRequestData": "vllm/v1/core/sched/output.py",
    "CachedRequestData": "vllm/v1/core/sched/output.py",
    "SchedulerOutput": "vllm/v1/core/sched/output.py",
    "UniProcExecutor.execute_model": "vllm/v1/executor/uniproc_executor.py",
    "UniProcExecutor.sample_tokens": "vllm/v1/executor/uniproc_executor.py",
    "NgramProposer.propose": "vllm/v1/spec_decode/ngram_proposer.py",
}
KNOWN = {name: signature_of(TEXT, name) for name in _FILES}
BLOCK = 16


class Held(SimpleNamespace):
    """An object that can be weakly referenced."""


class Engine:
    """A stand-in for vLLM: the tokens of each request and its cached positions.

    It keeps what its runner's `_update_states` keeps: computed positions and output tokens are as
    the step says them, and each step that reaches the end of what is known adds a token.
    """

    def __init__(self, signatures: dict[str, Signature], blocks: int = 64) -> None:
        self.steps: list[Any] = []
        self.made: list[BoundArguments] = []
        self.prompts: dict[str, Any] = {}
        self.outputs: dict[str, int] = {}
        self.written: dict[str, set[int]] = {}
        self.waiting: Any = None
        self.logits = torch.zeros(1)
        self._signatures = signatures
        group = SimpleNamespace(kv_cache_spec=SimpleNamespace(block_size=BLOCK))
        cache = SimpleNamespace(num_blocks=blocks, kv_cache_groups=[group])
        self.drafter = SimpleNamespace(propose=None)
        backend = SimpleNamespace(get_name=lambda: "FLASH_ATTN")
        self.runner = SimpleNamespace(
            drafter=self.drafter,
            execute_model_state=None,
            get_model=lambda: SimpleNamespace(parameters=lambda: iter(weights_of(3, 500))),
            attn_groups=[[SimpleNamespace(backend=backend)]],
            compilation_config=SimpleNamespace(
                cudagraph_mode="FULL_AND_PIECEWISE", cudagraph_capture_sizes=[1, 2]
            ),
        )
        worker = SimpleNamespace(worker=SimpleNamespace(model_runner=self.runner))
        executor = SimpleNamespace(
            execute_model=stand_in(signatures["UniProcExecutor.execute_model"], self._execute),
            sample_tokens=stand_in(signatures["UniProcExecutor.sample_tokens"], self._sample),
            driver_worker=worker,
        )
        core = SimpleNamespace(
            model_executor=executor, scheduler=SimpleNamespace(kv_cache_config=cache)
        )
        self._engine = SimpleNamespace(engine_core=SimpleNamespace(engine_core=core))

    def modules(self) -> dict[str, dict[str, Any]]:
        """Return the modules that the adapter imports."""
        known = self._signatures
        names = ("NewRequestData", "CachedRequestData", "SchedulerOutput")
        return {
            "vllm": {
                "LLM": stand_in(known["LLM"], self._llm),
                "SamplingParams": record(known["SamplingParams"]),
            },
            "vllm.v1.core.sched.output": {name: record(known[name]) for name in names},
        }

    def _llm(self, bound: BoundArguments) -> SimpleNamespace:
        self.made.append(bound)
        named = bound.arguments.get("kwargs", {})
        self._signatures["EngineArgs"].bind_partial(**named)
        made = Held(llm_engine=self._engine)
        self.dropped = finalize(made, lambda: None)
        return made

    def _execute(self, bound: BoundArguments) -> None:
        assert self.waiting is None
        scheduled = bound.arguments["scheduler_output"]
        self.steps.append(scheduled)
        for new in scheduled.scheduled_new_reqs:
            self.prompts[new.req_id], self.outputs[new.req_id] = new, 0
            self.written[new.req_id] = set()
        cached = scheduled.scheduled_cached_reqs
        computed = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        known = dict(zip(cached.req_ids, cached.num_output_tokens, strict=True))
        for name, many in scheduled.num_scheduled_tokens.items():
            self.outputs[name] = min(self.outputs[name], known.get(name, 0))
            first, prompt = computed.get(name, 0), len(self.prompts[name].prompt_token_ids)
            drafts = scheduled.scheduled_spec_decode_tokens.get(name, [])
            assert first <= len(self.written[name])  # nothing is skipped
            assert first + many <= prompt + self.outputs[name] + len(drafts)
            assert first + many <= BLOCK * len(self.prompts[name].block_ids[0])
            self.written[name] |= set(range(first, first + many))
        assert scheduled.total_num_scheduled_tokens == sum(scheduled.num_scheduled_tokens.values())
        self.waiting = scheduled
        self.runner.execute_model_state = SimpleNamespace(logits=self.logits)

    def _sample(self, bound: BoundArguments) -> SimpleNamespace:
        assert bound.arguments["grammar_output"] is None
        for name in self.waiting.num_scheduled_tokens:
            if len(self.written[name]) >= len(self.prompts[name].prompt_token_ids):
                self.outputs[name] += 3  # some drafts were taken
        self.waiting = None
        return SimpleNamespace()


Make = Callable[..., tuple[VllmForward, Engine]]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Make:
    """Return a function that makes the adapter over an engine of some signatures."""

    def made(
        signatures: dict[str, Signature] = KNOWN, blocks: int = 64, **changes: Any
    ) -> tuple[VllmForward, Engine]:
        engine = Engine(signatures, blocks)
        installed(monkeypatch, "vllm", **engine.modules())
        return VllmForward(setting("vllm", **changes), (1, 2, 5), context("vllm")), engine

    return made


def check_steps(forward: VllmForward, engine: Engine) -> None:
    """Assert that each forward is over N new positions of both requests, L being cached."""
    assert {name: len(held) for name, held in engine.written.items()} == {"0": 40, "1": 40}
    for n in (1, 5, 2, 5, 1):
        forward.forward(n)
        step = engine.steps[-1]
        assert step.num_scheduled_tokens == {"0": n, "1": n}
        assert step.scheduled_cached_reqs.num_computed_tokens == [40, 40]
        assert step.scheduled_cached_reqs.num_output_tokens == [1, 1]
        drafted = {name: len(tokens) for name, tokens in step.scheduled_spec_decode_tokens.items()}
        assert drafted == ({"0": n - 1, "1": n - 1} if n > 1 else {})
        assert step.scheduled_new_reqs == []
    assert set(engine.written["0"]) == set(range(45))


def test_a_forward_is_a_step_over_n_positions(make: Make) -> None:
    """Both requests have N - 1 drafts, and what a step sampled is gone in the next."""
    forward, engine = make()
    check_steps(forward, engine)


def test_the_engine_is_a_server_that_drafts(make: Make) -> None:
    """It may draft as many tokens as the largest N needs, and its proposer finds none."""
    _, engine = make()
    named = engine.made[0].arguments["kwargs"]
    assert named["speculative_config"]["num_speculative_tokens"] == 4
    assert named["load_format"] == "dummy"
    assert engine.drafter.propose([[1], [2, 3]], None, None, slot_mappings=None) == [[], []]
    assert engine.drafter.propose(4, [[1], [2, 3]], None, None, slot_mappings=None) == [[], []]


@pytest.mark.slow
def test_dropping_the_engine_frees_the_model(make: Make) -> None:
    """When an engine is dropped, its runner releases the model."""
    forward, engine = make()
    collect()
    assert engine.dropped.alive
    del forward
    collect()
    assert not engine.dropped.alive


def test_a_long_cache_is_filled_some_positions_at_a_time(make: Make) -> None:
    """A step has no more rows than the engine is told of, and the last one ends at L."""
    forward, engine = make(context=2 * vllm._CHUNK + 5, blocks=1000)
    rows = [step.total_num_scheduled_tokens for step in engine.steps]
    assert rows == [vllm._CHUNK, vllm._CHUNK, 5] * 2
    forward.forward(5)
    assert max(engine.written["1"]) == 2 * vllm._CHUNK + 9


def test_no_two_requests_share_a_block(make: Make) -> None:
    """No block is given twice, and the null block never."""
    _, engine = make()
    given = [block for prompt in engine.prompts.values() for block in prompt.block_ids[0]]
    assert len(set(given)) == len(given) == 8
    assert 0 not in given


def test_a_cache_that_is_too_small_is_refused(make: Make) -> None:
    """Two requests of 50 positions need eight blocks beside the null block."""
    make(blocks=9)
    with pytest.raises(EvidenceError, match="8 blocks does not hold 2 requests of 50 positions"):
        make(blocks=8)


def test_logits_are_checked(make: Make) -> None:
    """A forward whose logits are not finite is told from one whose logits are."""
    forward, engine = make()
    assert forward.finite(5)
    engine.logits = torch.tensor([0.0, float("nan")])
    assert not forward.finite(5)


def test_what_ran_is_on_record(make: Make) -> None:
    """The engine's own choices and the origin of the weights are recorded."""
    loaded = make()[0].loaded()
    assert (loaded.engine, loaded.release, loaded.package) == ("vllm", release("vllm"), "vllm")
    assert loaded.system_info == (
        "attention FLASH_ATTN; CUDA graphs FULL_AND_PIECEWISE, sizes 1, 2; drafts up to 4 tokens"
    )
    assert (loaded.weights_bytes, loaded.matrices) == (3000, ())


@pytest.mark.slow
def test_calls_bind_against_the_release_of_the_lock(make: Make) -> None:
    """Each call of a step, of loading and of prefilling has the form of the lock's release."""
    cache = Cache(default_cache())
    real = {
        name: signature("vllm", release("vllm"), file, name, cache) for name, file in _FILES.items()
    }
    forward, engine = make(real)
    check_steps(forward, engine)
    propose: StandIn = stand_in(real["NgramProposer.propose"], lambda _: None)
    propose([[1]], None, None, slot_mappings=None)


@pytest.mark.slow
def test_the_runner_keeps_what_the_steps_rely_on() -> None:
    """The runner's source restores state by a step's counts, and holds the engine."""
    cache, folder = Cache(default_cache()), "vllm/v1"
    texts_by_file = {
        f"{folder}/worker/gpu_model_runner.py": (
            "elif num_output_tokens < len(req_state.output_token_ids):",
            "del req_state.output_token_ids[num_output_tokens:]",
            "req_state.num_computed_tokens = num_computed_tokens",
            "self.execute_model_state = ExecuteModelState( scheduler_output, logits,",
            "draft_token_ids = self.drafter.propose( sampled_token_ids,",
            "propose_drafts_after_bookkeeping = input_fits_in_drafter",
            "self.attn_groups: list[list[AttentionGroup]]",
            "self.compilation_config = vllm_config.compilation_config",
        ),
        f"{folder}/engine/core_client.py": ("self.engine_core = EngineCore(*args, **kwargs)",),
        f"{folder}/engine/core.py": ("self.model_executor = executor_class(vllm_config)",),
        f"{folder}/core/sched/scheduler.py": ("self.kv_cache_config = kv_cache_config",),
        f"{folder}/executor/uniproc_executor.py": ("self.driver_worker = WorkerWrapperBase(",),
        f"{folder}/core/block_pool.py": ("self.null_block = self.free_block_queue.popleft()",),
        "vllm/entrypoints/llm.py": ("self.llm_engine = LLMEngine.from_engine_args(",),
    }
    sources = bring("vllm", release("vllm"), list(texts_by_file), cache)
    for path, wanted in texts_by_file.items():
        lines(sources.text(path), *wanted)
