"""vLLM's model runner: one step over N positions of each request, with given drafts.

The engine is vLLM's own, in this process, configured as a server that drafts N - 1 tokens by its
n-gram method. A step passes its executor a `SchedulerOutput` with the same drafts each time, and
comprises inputs, forward, logits of all N positions, and rejection sampling. The scheduler does not
run, and the proposer proposes nothing. Each step states again that L positions are computed and one
output token exists, which removes the previous step's samples from the runner's state.

Sources, in vLLM 0.20.2: vllm/v1/worker/gpu_model_runner.py, `_update_states` (1074 on) and
`sample_tokens`; vllm/v1/executor/uniproc_executor.py; vllm/v1/core/sched/output.py.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

from nearfree.engines.served import ServedForward, variables
from nearfree.errors import EvidenceError

_CHUNK = 2048
"""Most positions per step while a cache is filled."""
_NULL_BLOCK = 0
"""The reserved empty block of a cache: vllm/v1/core/block_pool.py, `null_block`."""


class VllmForward(ServedForward):
    """A step of vLLM's model runner, with CUDA graphs as vLLM captures them.

    Full graphs exist only for the largest N. Smaller N run as in vLLM a request that drafts fewer
    tokens than its maximum.
    """

    def start(self, folder: str) -> None:
        """Load the model, and prefill L positions of each request."""
        drafts = self.max_n - 1
        ngram = {
            "method": "ngram",
            "num_speculative_tokens": drafts,
            "prompt_lookup_min": 1,
            "prompt_lookup_max": 1,
        }
        with variables(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_NO_USAGE_STATS="1"):
            self._engine = import_module("vllm").LLM(  # it frees its model once it is dropped
                model=folder,
                dtype=self.setting.dtype,
                load_format="dummy",
                skip_tokenizer_init=True,
                max_model_len=self.capacity,
                max_num_seqs=self.batch,
                max_num_batched_tokens=max(_CHUNK, self.batch * self.max_n),
                enable_prefix_caching=False,
                async_scheduling=False,
                speculative_config=ngram if drafts else None,
            )
        core = self._engine.llm_engine.engine_core.engine_core
        self._executor = core.model_executor
        self._runner = self._executor.driver_worker.worker.model_runner
        if drafts:
            self._runner.drafter.propose = _no_drafts
        self._blocks = self._allocated_blocks(core.scheduler.kv_cache_config)
        self._output = import_module("vllm.v1.core.sched.output")
        self._sampling = import_module("vllm").SamplingParams(temperature=0.0)
        self._names = [str(request) for request in range(self.batch)]
        self._drafts = {
            name: self.tokens(self.batch + request, drafts)
            for request, name in enumerate(self._names)
        }
        for request, name in enumerate(self._names):
            self._prefill(name, self.tokens(request, self.cached))

    def _allocated_blocks(self, cache: Any) -> list[tuple[list[int], ...]]:
        """Return distinct cache blocks for each request, by the cache's groups of layers."""
        free = iter(range(_NULL_BLOCK + 1, cache.num_blocks))
        block_counts = [
            -(-self.capacity // group.kv_cache_spec.block_size) for group in cache.kv_cache_groups
        ]
        blocks = [
            tuple([next(free, _NULL_BLOCK) for _ in range(count)] for count in block_counts)
            for _ in range(self.batch)
        ]
        if any(_NULL_BLOCK in group for request_blocks in blocks for group in request_blocks):
            raise EvidenceError(
                f"vllm's cache of {cache.num_blocks} blocks does not hold {self.batch} requests of "
                f"{self.capacity} positions",
                remedy="Choose a smaller batch or context, or a GPU with more memory",
            )
        return blocks

    def _prefill(self, name: str, tokens: list[int]) -> None:
        """Compute the cached positions of one request, in chunks."""
        for start in range(0, len(tokens), _CHUNK):
            scheduled = {name: min(_CHUNK, len(tokens) - start)}
            new = [] if start else [self._new_request(name, tokens)]
            self._step(
                scheduled, {}, computed={name: start} if start else {}, output_tokens=0, new=new
            )

    def _new_request(self, name: str, tokens: list[int]) -> Any:
        return self._output.NewRequestData(
            req_id=name,
            prompt_token_ids=tokens,
            mm_features=[],
            sampling_params=self._sampling,
            pooling_params=None,
            block_ids=self._blocks[int(name)],
            num_computed_tokens=0,
            lora_request=None,
        )

    def _step(
        self,
        scheduled: Mapping[str, int],
        drafts: Mapping[str, list[int]],
        *,
        computed: Mapping[str, int],
        output_tokens: int,
        new: list[Any],
        check_finite: bool = False,
    ) -> bool:
        """Run a step; return whether its logits are finite, True if `check_finite` is false.

        `scheduled` are the positions per request to run, `computed` the cached positions of
        requests that the runner has, and `output_tokens` their tokens after the prompt.
        """
        cached = self._output.CachedRequestData(
            req_ids=list(computed),
            resumed_req_ids=set(),
            new_token_ids=[],
            all_token_ids={},
            new_block_ids=[None] * len(computed),
            num_computed_tokens=list(computed.values()),
            num_output_tokens=[output_tokens] * len(computed),
        )
        scheduler_output = self._output.SchedulerOutput(
            scheduled_new_reqs=new,
            scheduled_cached_reqs=cached,
            num_scheduled_tokens=dict(scheduled),
            total_num_scheduled_tokens=sum(scheduled.values()),
            scheduled_spec_decode_tokens=dict(drafts),
            scheduled_encoder_inputs={},
            num_common_prefix_blocks=[0] * len(self._blocks[0]),
            finished_req_ids=set(),
            free_encoder_mm_hashes=[],
        )
        output = self._executor.execute_model(scheduler_output)
        finite = not check_finite or bool(self._runner.execute_model_state.logits.isfinite().all())
        if output is None:
            self._executor.sample_tokens(None)
        return finite

    def forward(self, n: int) -> None:
        """Run one step over N positions of each request."""
        self._verify(n)

    def finite(self, n: int) -> bool:
        """Run one step, and return whether all its logits are finite."""
        return self._verify(n, check_finite=True)

    def _verify(self, n: int, *, check_finite: bool = False) -> bool:
        drafts = {name: tokens[: n - 1] for name, tokens in self._drafts.items()} if n > 1 else {}
        return self._step(
            dict.fromkeys(self._names, n),
            drafts,
            computed=dict.fromkeys(self._names, self.cached),
            output_tokens=1,
            new=[],
            check_finite=check_finite,
        )

    def parameters(self) -> Iterator[Any]:
        """Yield the tensors of the weights."""
        parameters: Iterator[Any] = self._runner.get_model().parameters()
        return parameters

    def describe(self) -> str:
        """Return the attention backends and CUDA graphs that vLLM chose."""
        groups = [group for groups in self._runner.attn_groups for group in groups]
        backends = sorted({group.backend.get_name() for group in groups})
        compiled = self._runner.compilation_config
        sizes = ", ".join(map(str, compiled.cudagraph_capture_sizes or ()))
        return (
            f"attention {', '.join(backends)}; CUDA graphs {compiled.cudagraph_mode}, sizes "
            f"{sizes or 'none'}; drafts up to {self.max_n - 1} tokens"
        )


def _no_drafts(*arguments: object, **_: object) -> list[list[int]]:
    """Propose no drafts, since the latency of a step is measured without drafting.

    The sampled tokens are the first list; later releases (0.32.0) pass a count before it.
    """
    sampled = next(argument for argument in arguments if isinstance(argument, list))
    return [[] for _ in sampled]
