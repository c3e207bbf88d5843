"""A real engine's forward by its release's rules: the paths and passes of each weight matrix.

A forward over N positions of b requests gives every product b N rows.
"""

from collections.abc import Iterable

from msgspec import Struct

from nearfree.backends.records import BY_NAME
from nearfree.core.setting import Setting
from nearfree.derive.granularity.releases import Release
from nearfree.derive.granularity.resolve import Resolver
from nearfree.errors import EvidenceError
from nearfree.log.events import EngineLoaded, EngineMatrix, EngineShape
from nearfree.sources.answers.ggml import Passes, Product, ProductQuery, Step, step_to
from nearfree.sources.answers.ggml_cpu import loaded_build
from nearfree.sources.answers.granularity import Files
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
    """Equal matrices of a forward, and the rules of their product."""

    matrix: EngineMatrix
    product: Product

    @property
    def elements(self) -> int:
        """The elements of all matrices of the group."""
        return self.matrix.count * self.matrix.rows * self.matrix.columns

    @property
    def name(self) -> str:
        """The name of these products as a limit of T(N)."""
        return f"mul_mat {self.matrix.type}"


class Change(Struct, frozen=True, kw_only=True):
    """The first N of a different path or number of passes, for the matrices of one weight type.

    `rows` are b N; `path` is the new path, `replaced` the former ones where it is another; `before`
    and `after` are the passes over each matrix; `weight` is the share of the type's matrices in the
    forward's elements.
    """

    n: int
    rows: int
    type: str
    rule: str
    path: str
    replaced: tuple[str, ...]
    before: int
    after: int
    weight: float
    place: str


Products = dict[object, Product]
"""Resolved products, shared by the forwards of a release."""


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
        self.forward = forward
        self._extraction = _extraction(forward, resolver)
        self._files = Files(self._extraction.fetched)
        self.release_name = f"{self._extraction.package} {self._extraction.version}"
        routed = sorted({matrix.part for matrix in forward.matrices if matrix.routed})
        if routed:
            raise EvidenceError(
                f"{self.release_name}: no rules say how many rows the experts of "
                f"{', '.join(routed)} get",
                remedy="Ask for a model without experts",
            )
        if not forward.matrices:
            raise EvidenceError(
                "the forward has no matrices on record",
                remedy="Measure it again: `nearfree retake`",
            )
        self.flags, repack = self._flags()
        self.matrix_groups = tuple(
            MatrixGroup(
                matrix, self._product(matrix, {} if products is None else products, repack=repack)
            )
            for matrix in forward.matrices
        )

    def _product(self, matrix: EngineMatrix, products: Products, *, repack: bool) -> Product:
        query = ProductQuery(
            weight=matrix.type,
            columns=matrix.rows,
            depth=matrix.columns,
            flags=self.flags,
            threads=self.forward.threads,
            repack=repack,
        )
        key = self.release_name, query
        if key not in products:
            products[key] = Product(self._extraction, query)
        return products[key]

    def _flags(self) -> tuple[frozenset[str], bool]:
        forward = self.forward
        if forward.flags is not None:
            return forward.flags, forward.repack
        rules = self._extraction.by_name()
        return loaded_build(rules, forward.system_info, repack=forward.repack)

    def share(self, weight_type: str) -> float:
        """Return the share of a weight type in the elements of all matrices; 0 if it is absent."""
        return _elements(
            group for group in self.matrix_groups if group.matrix.type == weight_type
        ) / _elements(self.matrix_groups)

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
        """Return the changes of path or number of passes up to N = `largest_n`, per weight type."""
        return [
            change
            for n in range(2, largest_n + 1)
            for weight_type in self._by_weight()
            if (change := self._change(weight_type, n - 1, n))
        ]

    def first_changes(self, baseline: int, largest_n: int) -> dict[str, Change]:
        """Return, by weight type, the first change of path or passes from those at the baseline.

        The heaviest type comes first. Types without a change up to N = `largest_n` are left out.
        """
        first_by_type = {}
        for weight_type in self._by_weight():
            for n in range(baseline + 1, largest_n + 1):
                if change := self._change(weight_type, baseline, n):
                    first_by_type[weight_type] = change
                    break
        return first_by_type

    def _by_weight(self) -> dict[str, list[MatrixGroup]]:
        """Return the matrix groups by weight type: heaviest type first, heaviest group first."""
        groups_by_type: dict[str, list[MatrixGroup]] = {}
        for group in sorted(self.matrix_groups, key=lambda group: -group.elements):
            groups_by_type.setdefault(group.matrix.type, []).append(group)
        return dict(sorted(groups_by_type.items(), key=lambda item: -_elements(item[1])))

    def _change(self, weight_type: str, first: int, second: int) -> Change | None:
        """Return the change of a weight type between two N: that of its heaviest changing group."""
        batch = self.forward.batch
        for product in distinct_products(self._by_weight()[weight_type]):
            before, after = product.passes(batch * first), product.passes(batch * second)
            if _paths_and_passes(before) != _paths_and_passes(after):
                step = step_to(batch * second, before, after)
                former = tuple(dict.fromkeys(passes.path for passes in before))
                return Change(
                    n=second, rows=step.rows, type=weight_type, rule=step.rule, path=step.path,
                    replaced=() if step.path in former else former,
                    before=step.before, after=step.after, weight=self.share(weight_type),
                    place=self.place(step, step.rule),
                )  # fmt: skip
        return None

    def place(self, passes: Step | Passes, rule: str | None = None) -> str:
        """Return the source of a rule behind passes, by default the first: release, file, lines."""
        branch = dict(passes.places).get(rule or "", passes.places[0][1])
        quoted = self._files.branch_evidence(branch)[-1]
        lines = "" if quoted.lines is None else f":{quoted.lines[0]}-{quoted.lines[1]}"
        return f"{self.release_name}, {quoted.file}{lines}"


def distinct_products(groups: Iterable[MatrixGroup]) -> list[Product]:
    """Return the distinct products of matrix groups, in order."""
    return list({id(group.product): group.product for group in groups}.values())


def _elements(groups: Iterable[MatrixGroup]) -> int:
    return sum(group.elements for group in groups)


def _paths_and_passes(passes: tuple[Passes, ...]) -> tuple[frozenset[str], int]:
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
