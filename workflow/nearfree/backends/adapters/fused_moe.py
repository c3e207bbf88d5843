"""Fused MoE of a serving engine: the engine's own call, and the work observed in it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from msgspec import Struct
from torch import Tensor, full, int32

from nearfree.backends.adapters.experts import Experts, expert_ids
from nearfree.backends.adapters.kernel import ExecutionContext, Positions
from nearfree.core.modules.moe_ffn import moe_work
from nearfree.core.modules.routing import routed_pairs
from nearfree.core.setting import Setting
from nearfree.core.work import ExecutedWork
from nearfree.errors import EvidenceError

Call = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""Rows, gate and up weights, down weights, routing weights and expert ids in; rows out."""


class Engine(Struct, frozen=True):
    """An installed engine: its release, the call, and the modules in which the call looks up names.

    `launcher` holds the names `try_get_optimal_moe_config` and `moe_align_block_size`, `chooser`
    the name `get_moe_configs`, which looks up a tuned file.
    """

    release: str
    call: Call
    launcher: Any
    chooser: Any


@contextmanager
def recording(module: Any, name: str) -> Iterator[list[Any]]:
    """Patch a module's function so that its results are recorded; yield their list."""
    function = getattr(module, name)
    results: list[Any] = []

    def recorded(*args: Any, **kwargs: Any) -> Any:
        results.append(function(*args, **kwargs))
        return results[-1]

    setattr(module, name, recorded)
    try:
        yield results
    finally:
        setattr(module, name, function)


class FusedMoe(Experts):
    """Gated experts with SiLU, 16-bit.

    Tokens and routing are prepared once; the alignment of tokens to blocks is part of the timed
    forward, as in serving.
    """

    engine: Callable[[int], Engine]
    """Returns the installed engine, ready to run E experts."""

    def __init__(self, setting: Setting, positions: Positions, execution: ExecutionContext) -> None:
        self._engine = self.engine(setting.experts or 0)
        _refuse(setting)
        super().__init__(setting, positions, execution)
        self._ids = {n: expert_ids(setting, n, execution.device).to(int32) for n in positions}
        self._shares = {
            n: full(ids.shape, 1.0 / (setting.top_k or 1), device=execution.device)
            for n, ids in self._ids.items()
        }

    def forward(self, n: int) -> Tensor:
        """Run one forward, [batch * N, d_model] in and out; every routing weight is 1 / k."""
        gate_up, down = self._weights.next()
        return self._engine.call(self._inputs[n], gate_up, down, self._shares[n], self._ids[n])

    def work(self, n: int) -> ExecutedWork:
        """Return the work of a forward, with the blocks that the engine chooses in a real run.

        If the engine does not align tokens to blocks, each token-expert pair is a block.

        Raises
        ------
        EvidenceError
            The engine splits the forward into chunks.
        """
        engine = self._engine
        with (
            recording(engine.launcher, "try_get_optimal_moe_config") as configs,
            recording(engine.launcher, "moe_align_block_size") as alignments,
            recording(engine.chooser, "get_moe_configs") as tuned_files,
        ):
            self.forward(n)
        if len(alignments) > 1 or len(configs) != 1:
            raise EvidenceError(
                f"{engine.release} ran {self._setting.batch * n} tokens in chunks",
                remedy="Choose a smaller batch or fewer positions",
            )
        config = configs[0][0] if isinstance(configs[0], tuple) else configs[0]
        pairs = routed_pairs(self._setting, n)
        rows = int(config["BLOCK_SIZE_M"])
        blocks = int(alignments[0][2]) // rows if alignments else sum(pairs)
        origin = "override" if not tuned_files else "tuned file" if tuned_files[0] else "default"
        path = "aligned to blocks" if alignments else "a block a pair"
        return moe_work(
            self._setting,
            pairs,
            f"{engine.release}, {origin} config, {path}",
            block_rows=rows,
            blocks=blocks,
            columns=int(config["BLOCK_SIZE_N"]),
            sms=self._execution.sms,
        )


def _refuse(setting: Setting) -> None:
    """Raise EvidenceError for a setting that the kernels do not run, or would silently change."""
    if setting.dtype not in {"bfloat16", "float16"}:
        raise EvidenceError(
            f"{setting.backend} runs no unquantised experts in {setting.dtype}",
            remedy="Choose bfloat16 or float16",
        )
    if setting.block_size_m:
        raise EvidenceError(
            f"{setting.backend} chooses BLOCK_SIZE_M itself, not {setting.block_size_m}",
            remedy="Leave block_size_m out, or choose torch_padded",
        )
