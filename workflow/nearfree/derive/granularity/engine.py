"""A real engine's forward as its release's rules see it: each matrix, its paths and its passes.

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
from nearfree.sources.answers.ggml import Product
from nearfree.sources.answers.ggml_cpu import told_build
from nearfree.sources.answers.ggml_passes import Passes, ProductQuery, Step, changed
from nearfree.sources.answers.granularity import Files
from nearfree.sources.extraction import Extraction
from nearfree.sources.packages import parse_release

_READER = "ggml"
"""What reads the products of an engine on a CPU."""


class EngineForward(Struct, frozen=True, kw_only=True):
    """What is known of an engine's forward besides N.

    `flags` are what the library is compiled for, spelt as rules spell them; None where they are to
    be read off `system_info`, the library's own words.
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
    """Return the forward of a setting, as the take that ran it says."""
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


class Multiplied(Struct, frozen=True):
    """Equal matrices of a forward, and the rules that say how they take rows."""

    matrix: EngineMatrix
    product: Product

    @property
    def elements(self) -> int:
        """Elements of all of them."""
        return self.matrix.count * self.matrix.rows * self.matrix.columns

    @property
    def name(self) -> str:
        """What a limit by them is called."""
        return f"mul_mat {self.matrix.type}"


class Change(Struct, frozen=True, kw_only=True):
    """A number of positions from which a type's matrices take other paths or passes than before.

    `rows` are b N; `path` is the one that is new, `before` and `after` the passes over each matrix
    then; `weight` is the share of the type's matrices in the forward's elements.
    """

    n: int
    rows: int
    type: str
    rule: str
    path: str
    before: int
    after: int
    weight: float
    place: str


Products = dict[object, Product]
"""Products that are ready, so that forwards of one release share them."""


class EngineRules:
    """The rules of a forward's release, ready for each of its matrices.

    Parameters
    ----------
    made
        Products that other forwards have made ready; what is lacking is added.

    Raises
    ------
    EvidenceError
        The release's rules are not in the log, or they do not speak of such a forward.
    ConfigError
        A type of weights is none whose rules are read.
    """

    def __init__(
        self, forward: EngineForward, resolver: Resolver, made: Products | None = None
    ) -> None:
        self.forward = forward
        self._extraction = _extraction(forward, resolver)
        self._files = Files(self._extraction.fetched)
        self.who = f"{self._extraction.package} {self._extraction.version}"
        routed = sorted({each.part for each in forward.matrices if each.routed})
        if routed:
            raise EvidenceError(
                f"{self.who}: how rows fall on the experts of {', '.join(routed)} is not read",
                remedy="Ask for a model without experts",
            )
        if not forward.matrices:
            raise EvidenceError(
                "the forward has no matrices on record",
                remedy="Measure it again: `nearfree retake`",
            )
        self.flags, repack = self._flags()
        self.multiplied = tuple(
            Multiplied(each, self._product(each, {} if made is None else made, repack=repack))
            for each in forward.matrices
        )

    def _product(self, matrix: EngineMatrix, made: Products, *, repack: bool) -> Product:
        query = ProductQuery(
            weight=matrix.type,
            columns=matrix.rows,
            depth=matrix.columns,
            flags=self.flags,
            threads=self.forward.threads,
            repack=repack,
        )
        key = self.who, query
        if key not in made:
            made[key] = Product(self._extraction, query)
        return made[key]

    def _flags(self) -> tuple[frozenset[str], bool]:
        forward = self.forward
        if forward.flags is not None:
            return forward.flags, forward.repack
        rules = self._extraction.by_name()
        return told_build(rules, forward.system_info, repack=forward.repack)

    def share(self, kind: str) -> float:
        """Return the share of a type's matrices in the elements of all; zero without one."""
        return _elements(e for e in self.multiplied if e.matrix.type == kind) / _elements(
            self.multiplied
        )

    def stepped(self, most: int) -> set[int]:
        """Return every N up to `most` at which a matrix's passes are others than at N - 1.

        Passes of the same path and number may be of tiles of another size.
        """
        batch = self.forward.batch
        kinds = [
            [[each.kind() for each in product.passes(batch * n)] for n in range(1, most + 1)]
            for product in distinct_products(self.multiplied)
        ]
        return {n for n in range(2, most + 1) if any(of[n - 1] != of[n - 2] for of in kinds)}

    def changes(self, most: int) -> list[Change]:
        """Return where paths or numbers of passes change, up to N = `most`, each type apart."""
        each = [
            self._change(kind, n - 1, n) for n in range(2, most + 1) for kind in self._by_weight()
        ]
        return [change for change in each if change is not None]

    def first_changes(self, baseline: int, most: int) -> dict[str, Change]:
        """Return, by type, the first N at which path or passes are other than at the baseline.

        The heaviest type comes first; what does not change up to N = `most` is left out.
        """
        found = {}
        for kind in self._by_weight():
            each = (self._change(kind, baseline, n) for n in range(baseline + 1, most + 1))
            change = next((one for one in each if one is not None), None)
            if change is not None:
                found[kind] = change
        return found

    def _by_weight(self) -> dict[str, list[Multiplied]]:
        """Return the matrices by type; the heaviest type, and in it the heaviest, first."""
        types: dict[str, list[Multiplied]] = {}
        for each in sorted(self.multiplied, key=lambda one: -one.elements):
            types.setdefault(each.matrix.type, []).append(each)
        return dict(sorted(types.items(), key=lambda item: -_elements(item[1])))

    def _change(self, kind: str, first: int, second: int) -> Change | None:
        """Return what changes of a type between two N, of its heaviest matrices that change."""
        alike = self._by_weight()[kind]
        steps = (self._step(product, first, second) for product in distinct_products(alike))
        step = next((one for one in steps if one is not None), None)
        if step is None:
            return None
        return Change(
            n=second,
            rows=step.rows,
            type=kind,
            rule=step.rule,
            path=step.path,
            before=step.before,
            after=step.after,
            weight=self.share(kind),
            place=self.place(step),
        )

    def place(self, step: Step | Passes) -> str:
        """Return where the rule of a step, or of some passes, stands: release, file and lines."""
        name = step.rule if isinstance(step, Step) else step.places[0][0]
        branch = dict(step.places).get(name, step.places[0][1])
        quoted = self._files.quoted(branch)[-1]
        lines = "" if quoted.lines is None else f":{quoted.lines[0]}-{quoted.lines[1]}"
        return f"{self.who}, {quoted.file}{lines}"

    def _step(self, product: Product, first: int, second: int) -> Step | None:
        """Return the change between two N, None where path and number of passes are the same."""
        batch = self.forward.batch
        before, after = product.passes(batch * first), product.passes(batch * second)
        if _alike(before) == _alike(after):
            return None
        new, rule = changed(before, after)
        return Step(
            rows=batch * second, rule=rule, path=new.path, before=sum(p.times for p in before),
            after=sum(p.times for p in after), places=new.places,
        )  # fmt: skip


def distinct_products(multiplied: Iterable[Multiplied]) -> list[Product]:
    """Return the products of matrices, each once, in their order."""
    return list({id(each.product): each.product for each in multiplied}.values())


def _elements(multiplied: Iterable[Multiplied]) -> int:
    return sum(each.elements for each in multiplied)


def _alike(passes: tuple[Passes, ...]) -> tuple[frozenset[str], int]:
    """Return what the principle asks to stay: the paths, and the number of passes."""
    return frozenset(each.path for each in passes), sum(each.times for each in passes)


def _extraction(forward: EngineForward, resolver: Resolver) -> Extraction:
    """Return what a forward's release says; EvidenceError if no reader speaks of its products."""
    known = BY_NAME.get(forward.engine)
    rules = None if known is None else known.rules
    if rules is None or rules.reader != _READER:
        raise EvidenceError(
            f"no rules of {forward.engine}'s own forward are read", remedy="Ask about llama_cpp"
        )
    return resolver.extraction(Release(*parse_release(f"{rules.package}=={forward.release}")))
