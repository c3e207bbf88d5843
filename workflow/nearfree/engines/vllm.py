"""vLLM's model runner: one step over N positions of each request, its drafts given from outside.

The engine is vLLM's own, in this process, as a server that drafts N - 1 tokens by its n-gram
method. A step is what its executor is handed (`SchedulerOutput`), with the same drafts each time:
inputs, forward, logits of all N positions, and sampling with rejection. Its scheduler does not run,
and its proposer finds nothing. Each step says anew that L positions are computed and one token is
known, which takes what the step before sampled out of the runner's state again.

Places, in vLLM 0.20.2: vllm/v1/worker/gpu_model_runner.py, `_update_states` (1074 on) and
`sample_tokens`; vllm/v1/executor/uniproc_executor.py; vllm/v1/core/sched/output.py.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

from nearfree.engines.served import ServedForward, variables
from nearfree.errors import EvidenceError

_CHUNK = 2048
"""Positions that fill a cache in one step, at most."""
_NULL_BLOCK = 0
"""The block of a cache that holds nothing: vllm/v1/core/block_pool.py, `null_block`."""


class VllmForward(ServedForward):
    """A step of vLLM's model runner, with CUDA graphs as vLLM captures them.

    Full graphs are of the largest N alone, and smaller ones run as vLLM runs a request that drafts
    fewer tokens than it may.
    """

    def start(self, folder: str) -> None:
        """Load the model, and prefill L positions of each request."""
        drafts = self.most - 1
        ngram = {
            "method": "ngram",
            "num_speculative_tokens": drafts,
            "prompt_lookup_min": 1,
            "prompt_lookup_max": 1,
        }
        with variables(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_NO_USAGE_STATS="1"):
            self._engine = import_module("vllm").LLM(  # it gives its model back once it is dropped
                model=folder,
                dtype=self.setting.dtype,
                load_format="dummy",
                skip_tokenizer_init=True,
                max_model_len=self.room,
                max_num_seqs=self.batch,
                max_num_batched_tokens=max(_CHUNK, self.batch * self.most),
                enable_prefix_caching=False,
                async_scheduling=False,
                speculative_config=ngram if drafts else None,
            )
        core = self._engine.llm_engine.engine_core.engine_core
        self._executor = core.model_executor
        self._runner = self._executor.driver_worker.worker.model_runner
        if drafts:
            self._runner.drafter.propose = _nothing
        self._blocks = self._given(core.scheduler.kv_cache_config)
        self._output = import_module("vllm.v1.core.sched.output")
        self._sampling = import_module("vllm").SamplingParams(temperature=0.0)
        self._names = [str(request) for request in range(self.batch)]
        self._drafts = {
            name: self.tokens(self.batch + request, drafts)
            for request, name in enumerate(self._names)
        }
        for request, name in enumerate(self._names):
            self._prefill(name, self.tokens(request, self.cached))

    def _given(self, cache: Any) -> list[tuple[list[int], ...]]:
        """Return the blocks of each request, by the cache's groups of layers, none twice."""
        free = iter(range(_NULL_BLOCK + 1, cache.num_blocks))
        rooms = [-(-self.room // group.kv_cache_spec.block_size) for group in cache.kv_cache_groups]
        blocks = [
            tuple([next(free, _NULL_BLOCK) for _ in range(room)] for room in rooms)
            for _ in range(self.batch)
        ]
        if any(_NULL_BLOCK in group for each in blocks for group in each):
            raise EvidenceError(
                f"vllm's cache of {cache.num_blocks} blocks does not hold {self.batch} requests of "
                f"{self.room} positions",
                remedy="Choose a smaller batch or context, or a GPU with more memory",
            )
        return blocks

    def _prefill(self, name: str, tokens: list[int]) -> None:
        """Compute the cached positions of one request, some at a time."""
        for first in range(0, len(tokens), _CHUNK):
            many = {name: min(_CHUNK, len(tokens) - first)}
            new = [] if first else [self._new(name, tokens)]
            self._step(many, {}, computed={name: first} if first else {}, known=0, new=new)

    def _new(self, name: str, tokens: list[int]) -> Any:
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
        many: Mapping[str, int],
        drafts: Mapping[str, list[int]],
        *,
        computed: Mapping[str, int],
        known: int,
        new: list[Any],
        look: bool = False,
    ) -> bool:
        """Run a step of so many positions a request; return whether logits looked at are finite.

        `computed` are the positions in the cache of requests that the runner has, and `known` how
        many tokens of theirs follow the prompt.
        """
        cached = self._output.CachedRequestData(
            req_ids=list(computed),
            resumed_req_ids=set(),
            new_token_ids=[],
            all_token_ids={},
            new_block_ids=[None] * len(computed),
            num_computed_tokens=list(computed.values()),
            num_output_tokens=[known] * len(computed),
        )
        asked = self._output.SchedulerOutput(
            scheduled_new_reqs=new,
            scheduled_cached_reqs=cached,
            num_scheduled_tokens=dict(many),
            total_num_scheduled_tokens=sum(many.values()),
            scheduled_spec_decode_tokens=dict(drafts),
            scheduled_encoder_inputs={},
            num_common_prefix_blocks=[0] * len(self._blocks[0]),
            finished_req_ids=set(),
            free_encoder_mm_hashes=[],
        )
        output = self._executor.execute_model(asked)
        finite = not look or bool(self._runner.execute_model_state.logits.isfinite().all())
        if output is None:
            self._executor.sample_tokens(None)
        return finite

    def forward(self, n: int) -> None:
        """Run one step over N positions of each request."""
        self._verify(n)

    def finite(self, n: int) -> bool:
        """Run one, and return whether its logits are all finite."""
        return self._verify(n, look=True)

    def _verify(self, n: int, *, look: bool = False) -> bool:
        drafts = {name: each[: n - 1] for name, each in self._drafts.items()} if n > 1 else {}
        return self._step(
            dict.fromkeys(self._names, n),
            drafts,
            computed=dict.fromkeys(self._names, self.cached),
            known=1,
            new=[],
            look=look,
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
            f"{sizes or 'none'}; drafts up to {self.most - 1} tokens"
        )


def _nothing(*given: object, **_: object) -> list[list[int]]:
    """Propose no drafts: what a step takes is asked, not what drafts cost.

    What was sampled is the first list: later releases (0.32.0) put how many are asked before it.
    """
    sampled = next(each for each in given if isinstance(each, list))
    return [[] for _ in sampled]
