"""SGLang's model runner: one forward over N positions of each request, with given drafts.

The runner is SGLang's own, constructed as in its `bench_one_batch`. N = 1 is a decode forward;
N > 1 is a forward in TARGET_VERIFY, as its n-gram method verifies a chain of N - 1 drafts. For each
N the attention backend and the CUDA graph are those of a server with that number of drafts. A
forward begins with the runner's inputs (`ForwardBatch.init_new`) and ends with the logits of all N
positions. Cache slots are allocated before; neither scheduler, drafter nor acceptance runs.

Sources, in SGLang 0.5.9: bench_one_batch.py; srt/speculative/ngram_worker.py,
`_prepare_for_speculative_decoding`; srt/model_executor/model_runner.py and cuda_graph_runner.py.
"""

from collections.abc import Iterator
from copy import copy
from importlib import import_module
from typing import Any, NamedTuple

from nearfree.engines.served import ServedForward
from nearfree.errors import EvidenceError

_GPU = 0
_RANK = {"tp_rank": 0, "tp_size": 1, "moe_ep_rank": 0, "moe_ep_size": 1, "pp_rank": 0, "pp_size": 1}


class _Server(NamedTuple):
    """The runner's state for a server that drafts N - 1 tokens."""

    algorithm: Any
    attention: Any
    graphs: Any
    batch: Any


class SglangForward(ServedForward):
    """A forward of SGLang's model runner, with a CUDA graph of b requests per N."""

    def start(self, folder: str) -> None:
        """Load the model, and prefill L positions of each request."""
        self._torch = import_module("torch")  # the one that SGLang computes with
        self._bench = import_module("sglang.bench_one_batch")
        arguments = import_module("sglang.srt.server_args")
        runners = import_module("sglang.srt.model_executor.model_runner")
        configs = import_module("sglang.srt.configs.model_config")
        drafting = {"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": self.max_n}
        self._args = arguments.ServerArgs(
            model_path=folder,
            dtype=self.setting.dtype,
            load_format="dummy",
            skip_tokenizer_init=True,
            context_length=self.capacity,
            max_running_requests=self.batch,
            cuda_graph_bs=[self.batch],
            page_size=1,
            speculative_ngram_max_bfs_breadth=1,  # a chain, no tree
            **(drafting if self.max_n > 1 else {}),
        )
        if self._args.page_size != 1:
            raise EvidenceError(
                f"sglang takes pages of {self._args.page_size} positions for this model, and its "
                "cache is filled here position by position",
                remedy="Choose a model whose attention takes pages of one position",
            )
        ports = arguments.PortArgs.init_new(self._args)
        self._runner = runners.ModelRunner(
            model_config=configs.ModelConfig.from_server_args(self._args),
            mem_fraction_static=self._args.mem_fraction_static,
            gpu_id=_GPU,
            nccl_port=ports.nccl_port,
            server_args=self._args,
            **_RANK,
        )
        self._forward_batch = import_module("sglang.srt.model_executor.forward_batch_info")
        self._spec = import_module("sglang.srt.speculative.spec_info")
        self._ngram = import_module("sglang.srt.speculative.ngram_info")
        self._cached_batch, self._slots = self._prefilled()
        self._servers: dict[int, _Server] = {}

    def _prefilled(self) -> tuple[Any, Any]:
        """Return a batch of b prefilled requests, and cache slots for N more of each, [b, N]."""
        batch: Any = None
        for request in range(self.batch):
            tokens = [self.tokens(request, self.cached)]
            reqs = self._bench.prepare_synthetic_inputs_for_latency_test(1, self.cached, tokens)
            _, _, filled = self._bench.extend(reqs, self._runner)
            if batch is None:
                batch = filled
            else:
                batch.merge_batch(filled)
        memory = import_module("sglang.srt.mem_cache.common")
        slots = memory.alloc_token_slots(batch.tree_cache, self.batch * self.max_n)
        slots = slots.view(self.batch, self.max_n)
        pool = self._runner.req_to_token_pool.req_to_token
        pool[batch.req_pool_indices, self.cached : self.cached + self.max_n] = slots.to(pool.dtype)
        return batch, slots

    def _server(self, n: int) -> _Server:
        """Return the runner's state for forwards over N, created on first use."""
        if n not in self._servers:
            runner, algorithms = self._runner, self._spec.SpeculativeAlgorithm
            runner.spec_algorithm = algorithms.NGRAM if n > 1 else algorithms.NONE
            self._args.speculative_num_draft_tokens = n if n > 1 else None
            runner.init_attention_backend()
            runner.init_device_graphs()
            self._servers[n] = _Server(
                runner.spec_algorithm,
                runner.attn_backend,
                runner.graph_runner,
                self._decode() if n == 1 else self._verify(n),
            )
        return self._servers[n]

    def _decode(self) -> Any:
        """Return the batch of a decode forward: one new position per request."""
        batch = self._new_mode_batch(1, "DECODE", "NONE", self._drafts(1).flatten())
        for name in ("seq_lens", "seq_lens_cpu", "orig_seq_lens"):
            setattr(batch, name, getattr(self._cached_batch, name) + 1)
        batch.seq_lens_sum = self._cached_batch.seq_lens_sum + self.batch
        return batch

    def _verify(self, n: int) -> Any:
        """Return the batch of a forward that verifies a chain of N - 1 drafts per request."""
        torch, device, length = self._torch, self._slots.device, self.cached + n
        tokens = self._drafts(n)
        offsets = torch.arange(n, device=device)
        row_indices = torch.arange(self.batch * n, device=device).view(self.batch, n)
        next_rows = torch.where(offsets + 1 < n, offsets + 1, -1).repeat(self.batch, 1)
        keys = torch.arange(length, device=device)
        mask = keys[None, :] <= self.cached + offsets[:, None]
        batch = self._new_mode_batch(n, "TARGET_VERIFY", "NGRAM", tokens.flatten())
        batch.spec_info = self._ngram.NgramVerifyInput(
            draft_token=tokens.flatten(),
            tree_mask=mask.repeat(self.batch, 1, 1).flatten(),
            positions=(self.cached + offsets).repeat(self.batch),
            retrive_index=row_indices,
            retrive_next_token=next_rows,
            retrive_next_sibling=torch.full_like(next_rows, -1),
            draft_token_num=n,
        )
        return batch

    def _new_mode_batch(self, n: int, mode: str, algorithm: str, tokens: Any) -> Any:
        """Return a copy of the prefilled batch in another mode, with N new tokens per request."""
        batch = copy(self._cached_batch)
        batch.forward_mode = getattr(self._forward_batch.ForwardMode, mode)
        batch.spec_algorithm = getattr(self._spec.SpeculativeAlgorithm, algorithm)
        batch.input_ids = tokens
        batch.out_cache_loc = self._slots[:, :n].flatten()
        return batch

    def _drafts(self, n: int) -> Any:
        """Return the new tokens of each request, [b, N]."""
        tokens = [self.tokens(self.batch + request, n) for request in range(self.batch)]
        return self._torch.tensor(tokens, dtype=self._torch.int64, device=self._slots.device)

    def forward(self, n: int) -> Any:
        """Run one forward over N positions of each request; return logits, [b N, vocabulary]."""
        server, runner = self._server(n), self._runner
        runner.spec_algorithm = server.algorithm
        runner.attn_backend, runner.graph_runner = server.attention, server.graphs
        with self._torch.no_grad():
            forward_batch = self._forward_batch.ForwardBatch.init_new(
                server.batch.get_model_worker_batch(), runner
            )
            return runner.forward(forward_batch).logits_output.next_token_logits

    def finite(self, n: int) -> bool:
        """Run one forward, and return whether all its logits are finite."""
        return bool(self.forward(n).isfinite().all())

    def parameters(self) -> Iterator[Any]:
        """Yield the tensors of the weights."""
        parameters: Iterator[Any] = self._runner.model.parameters()
        return parameters

    def describe(self) -> str:
        """Return the attention backends that SGLang chose, and its CUDA graphs."""
        prefill, decode = self._args.get_attention_backends()
        graphs = "none" if self._args.disable_cuda_graph else f"of {self.batch} requests"
        return f"attention {decode}, of prefills {prefill}; CUDA graphs {graphs}, one for each N"
