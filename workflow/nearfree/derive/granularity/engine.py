"""A real engine's forward by its release's rules: the paths and passes of each weight matrix.

A forward over N positions of b requests gives every product b N rows, and the experts of a layer k
rows for each of them.
"""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from nearfree.backends.records import BY_NAME
from nearfree.core.setting import Setting
from nearfree.derive.granularity.releases import Release
from nearfree.derive.granularity.resolve import Resolver
from nearfree.derive.granularity.routed_product import RoutedProduct
from nearfree.errors import EvidenceError
from nearfree.log.events import EngineLoaded, EngineMatrix, EngineShape
from nearfree.sources.answers.ggml import (
    Passes,
    Product,
    ProductQuery,
    RowProduct,
    Step,
    step_to,
)
from nearfree.sources.answers.ggml_cpu import loaded_build
from nearfree.sources.answers.ggml_experts import ExpertProduct
from nearfree.sources.answers.granularity import Files
from nearfree.sources.answers.intervals import Evidence, place_of
from nearfree.sources.extraction import Extraction
from nearfree.sources.packages import parse_release

_READER = "ggml"
"""The reader of an engine's products on a CPU."""


class EngineForward(Struct, frozen=True, kw_only=True):
    """An engine's forward, except N.

    `flags` are the CPU features that the library is compiled for, spelt as in the rules. None means
    that they follow from `system_info`, the text that the library prints.
    """

    engine: str
    release: str
    matrices: tuple[EngineMatrix, ...]
    shape: EngineShape
    threads: int = 1
    repack: bool = True
    batch: int = 1
    context: int = 0
    system_info: str = ""
    flags: frozenset[str] | None = None


def forward_of(setting: Setting, loaded: EngineLoaded) -> EngineForward:
    """Return the forward of a setting, from what its take recorded at load."""
    return EngineForward(
        engine=loaded.engine,
        release=loaded.release,
        matrices=loaded.matrices,
        shape=loaded.shape,
        threads=setting.threads or 1,
        repack=loaded.repack,
        batch=setting.batch,
        context=setting.context or 0,
        system_info=loaded.system_info,
    )


class MatrixGroup(Struct, frozen=True):
    """Equal matrices of a forward, and the rules of their product.

    `elements` are those of a pass in each of its layers: of all its matrices, or of one expert's in
    each layer. `used` are those that a token's products read.
    """

    matrix: EngineMatrix
    product: RowProduct
    elements: int
    used: int

    @property
    def name(self) -> str:
        """The name of these products as a limit of T(N)."""
        return product_name(self.matrix.type, routed=self.matrix.routed)


def product_name(weight_type: str, *, routed: bool) -> str:
    """Return ggml's name of an operation, and the type of its weights."""
    return f"mul_mat_id {weight_type}" if routed else f"mul_mat {weight_type}"


class Change(Struct, frozen=True, kw_only=True):
    """The first N of a different path or number of passes, for products of one weight type.

    `rows` are b N; `path` is the new path, `replaced` the former ones where it is another; `before`
    and `after` are the passes over each matrix, and with `routed` those over matrices of one expert
    each, as expected; `weight` is the share of the products in the elements that a token reads.
    """

    n: int
    rows: int
    type: str
    routed: bool
    rule: str
    path: str
    replaced: tuple[str, ...]
    before: float
    after: float
    weight: float
    place: str

    @property
    def name(self) -> str:
        """The name of the products, as `MatrixGroup.name`."""
        return product_name(self.type, routed=self.routed)


Products = dict[object, RowProduct]
"""Resolved products, shared by the forwards of a release."""
ROUTER = "ffn_gate_inp"
"""The matrix that chooses experts: it has as many outputs as there are experts."""


class EngineRules:
    """The rules of a forward's release, resolved for each of its matrices.

    New products are added to `products`, those that other forwards resolved.

    Raises
    ------
    EvidenceError
        The release's rules are not in the log, or do not cover such a forward.
    ConfigError
        A type of weights has no rules.
    """

    def __init__(
        self, forward: EngineForward, resolver: Resolver, products: Products | None = None
    ) -> None:
        self._read(forward, _extraction(forward, resolver))
        self.flags, self._repack = self._flags()
        self._products = {} if products is None else products
        self.matrix_groups = tuple(map(self._group, forward.matrices))

    def _read(self, forward: EngineForward, extraction: Extraction) -> None:
        """Keep a forward and its release's rules."""
        self.forward, self._extraction = forward, extraction
        self._files = Files(extraction.fetched)
        self.release_name = f"{extraction.package} {extraction.version}"
        if not forward.matrices:
            raise EvidenceError(
                "the forward has no matrices on record",
                remedy="Name a file with weights, or measure it again: `nearfree retake`",
            )
        self.experts: int | None = None
        """The experts of each layer that has some, None without."""

    def _group(self, matrix: EngineMatrix) -> MatrixGroup:
        elements = matrix.count * matrix.rows * matrix.columns
        if not matrix.routed:
            return MatrixGroup(matrix, self._product(matrix, None), elements, elements)
        experts, top_k = self._experts_of(matrix), self.forward.shape.taken_experts
        self.experts = experts
        product = self._product(matrix, (experts, top_k))
        return MatrixGroup(matrix, product, elements // experts, elements // experts * top_k)

    def _experts_of(self, matrix: EngineMatrix) -> int:
        """Return the number of experts in each layer of a matrix, by the layers' router."""
        routers = {item.rows for item in self.forward.matrices if item.part == ROUTER}
        top_k = self.forward.shape.taken_experts
        experts = next(iter(routers), 0)
        if len(routers) != 1 or matrix.count % experts or not top_k <= experts:
            raise EvidenceError(
                f"{self.release_name}: {matrix.count} matrices {matrix.part}, of which a token "
                f"takes {top_k} a layer, do not fit routers of {sorted(routers) or 'no'} experts",
                remedy="Ask for a model with equally many experts in each layer that has some",
            )
        return experts

    def _product(self, matrix: EngineMatrix, routing: tuple[int, int] | None) -> RowProduct:
        """Return the rules of a matrix's product; `routing` is E and k of experts."""
        query = ProductQuery(
            weight=matrix.type,
            columns=matrix.rows,
            depth=matrix.columns,
            flags=self.flags,
            threads=self.forward.threads,
            repack=self._repack,
        )
        key = self.release_name, query, routing
        if key not in self._products:
            self._products[key] = (
                Product(self._extraction, query)
                if routing is None
                else RoutedProduct(ExpertProduct(self._extraction, query), *routing)
            )
        return self._products[key]

    def _flags(self) -> tuple[frozenset[str], bool]:
        forward = self.forward
        if forward.flags is not None:
            return forward.flags, forward.repack
        rules = self._extraction.by_name()
        return loaded_build(rules, forward.system_info, repack=forward.repack)

    def share(self, name: str) -> float:
        """Return the share of products, by their name, in what a token reads; 0 if absent."""
        return _used(group for group in self.matrix_groups if group.name == name) / _used(
            self.matrix_groups
        )

    def step_positions(self, largest_n: int) -> set[int]:
        """Return every N up to `largest_n` at which a matrix's passes differ from those at N - 1.

        Passes also differ if only the size of their tiles does.
        """
        batch = self.forward.batch
        kinds_by_n = [
            [
                [passes.kind() for passes in product.passes(batch * n)]
                for n in range(1, largest_n + 1)
            ]
            for product in distinct_products(self.matrix_groups)
        ]
        return {
            n
            for n in range(2, largest_n + 1)
            if any(kinds[n - 1] != kinds[n - 2] for kinds in kinds_by_n)
        }

    def changes(self, largest_n: int) -> list[Change]:
        """Return the changes of path or number of passes up to N = `largest_n`, by products."""
        return [
            change
            for n in range(2, largest_n + 1)
            for groups in self._by_weight().values()
            if (change := self._change(groups, n - 1, n))
        ]

    def first_changes(self, baseline: int, largest_n: int) -> dict[str, Change]:
        """Return, by the name of products, the first change of path or passes from the baseline's.

        The heaviest come first. Products without a change up to N = `largest_n` are left out.
        """
        first_by_name = {}
        for name, groups in self._by_weight().items():
            for n in range(baseline + 1, largest_n + 1):
                if change := self._change(groups, baseline, n):
                    first_by_name[name] = change
                    break
        return first_by_name

    def _by_weight(self) -> dict[str, list[MatrixGroup]]:
        """Return the matrix groups by their name: heaviest name first, heaviest group first."""
        groups_by_name: dict[str, list[MatrixGroup]] = {}
        for group in sorted(self.matrix_groups, key=lambda group: -group.used):
            groups_by_name.setdefault(group.name, []).append(group)
        return dict(sorted(groups_by_name.items(), key=lambda item: -_used(item[1])))

    def _change(self, groups: Sequence[MatrixGroup], first: int, second: int) -> Change | None:
        """Return the change of equally named groups between two N: of the first that changes."""
        batch = self.forward.batch
        matrix, name = groups[0].matrix, groups[0].name
        for product in distinct_products(groups):
            before, after = product.passes(batch * first), product.passes(batch * second)
            if _paths_and_passes(before) != _paths_and_passes(after):
                step = step_to(batch * second, before, after)
                former = tuple(dict.fromkeys(passes.path for passes in before))
                return Change(
                    n=second, rows=step.rows, type=matrix.type, routed=matrix.routed,
                    rule=step.rule, path=step.path, replaced=() if step.path in former else former,
                    before=step.before, after=step.after, weight=self.share(name),
                    place=self.place(step, step.rule),
                )  # fmt: skip
        return None

    def deciding(self, evidence: list[Evidence]) -> Evidence:
        """Return the line that is cited of a rule's: that of its value."""
        return evidence[-1]

    def place(self, passes: Step | Passes, rule: str | None = None) -> str:
        """Return the source of a rule behind passes, by default the first: release, file, lines."""
        branch = dict(passes.places).get(rule or "", passes.places[0][1])
        quoted = self.deciding(self._files.branch_evidence(branch))
        return f"{self.release_name}, {place_of(quoted.file, quoted.lines)}"


def distinct_products(groups: Iterable[MatrixGroup]) -> list[RowProduct]:
    """Return the distinct products of matrix groups, in order."""
    return list({id(group.product): group.product for group in groups}.values())


def _used(groups: Iterable[MatrixGroup]) -> int:
    return sum(group.used for group in groups)


def _paths_and_passes(passes: tuple[Passes, ...]) -> tuple[frozenset[str], float]:
    """Return what must stay the same within one step: the paths and the number of passes."""
    return frozenset(kind.path for kind in passes), sum(kind.times for kind in passes)


def _extraction(forward: EngineForward, resolver: Resolver) -> Extraction:
    """Return the extraction of a forward's release.

    Raises EvidenceError if no reader covers the engine's products.
    """
    backend = BY_NAME.get(forward.engine)
    rules = None if backend is None else backend.rules
    if rules is None or rules.reader != _READER:
        raise EvidenceError(
            f"no rules of {forward.engine}'s own forward are read", remedy="Ask about llama_cpp"
        )
    return resolver.extraction(Release(*parse_release(f"{rules.package}=={forward.release}")))
