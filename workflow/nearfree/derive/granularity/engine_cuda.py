"""llama.cpp's forward on an NVIDIA GPU by its release's rules: the kernels of each matrix."""

from nearfree.backends.records import LLAMA_CPP_CUDA
from nearfree.derive.granularity.engine import EngineForward, EngineRules
from nearfree.derive.granularity.releases import Release
from nearfree.derive.granularity.resolve import Resolver
from nearfree.log.events import EngineMatrix
from nearfree.sources.answers.ggml import RowProduct
from nearfree.sources.answers.ggml_cuda import LEAST_COLUMNS, CudaProduct, CudaQuery
from nearfree.sources.answers.ggml_cuda_granularity import deciding
from nearfree.sources.answers.intervals import Evidence


class CudaEngineRules(EngineRules):
    """The rules of a forward's release on a GPU, resolved for each of its matrices.

    `sm` is the GPU's compute capability, 90 for 9.0. Products by experts count the passes over an
    expert's weights, which are one for each of its tokens where a kernel takes tokens one by one.
    Products of one output, such as a shared expert's gate, are left out.

    Raises
    ------
    EvidenceError
        The release's rules are not in the log, or not those for the GPU.
    ConfigError
        A type of weights has no rules.
    """

    def __init__(self, forward: EngineForward, sm: int, resolver: Resolver) -> None:
        self._read(forward, resolver.extraction(Release(LLAMA_CPP_CUDA, forward.release)))
        self.sm, self.flags = sm, frozenset()
        self.matrix_groups = tuple(
            self._group(matrix) for matrix in forward.matrices if matrix.rows >= LEAST_COLUMNS
        )

    def _product(self, matrix: EngineMatrix, routing: tuple[int, int] | None) -> RowProduct:
        """Return the rules of a matrix's product; rows are a forward's tokens."""
        query = CudaQuery(
            weight=matrix.type,
            columns=matrix.rows,
            depth=matrix.columns,
            sm=self.sm,
            routed=routing is not None,
        )
        return CudaProduct(self._extraction, query)

    def deciding(self, evidence: list[Evidence]) -> Evidence:
        """Return the line that limits a kernel's columns, else that of a rule's value."""
        return deciding(evidence)
