"""The workflow's stages, each declared once: its inputs, outputs, scopes and function.

Rules, the command line, the audit, the report, the crate and the docs follow from these records.
They name code as text, so that importing the stages imports none of it.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

from nearfree.core.scopes import IMPORTED, PLATFORM, PUBLIC, SOURCES, kind


class Stage(NamedTuple):
    """One step from the log to the report.

    `make` is the dotted path of the function that runs it; that of tables is called with the
    layout, the scope, and the config or the values of `parameters`. The stage depends on the code
    that the function's module imports, and on the config's values named in `parameters`.
    """

    name: str
    make: str
    scopes: tuple[str, ...]
    """Kinds of scopes; each scope has one job. Empty: one job for all scopes together."""
    tables: Mapping[str, str] = {}
    """The tables that it writes: the declaring module by the table's name."""
    reads: tuple[str, ...] = ()
    """Tables of its own scope that it reads, as far as that scope has them."""
    public: tuple[str, ...] = ()
    """Tables of the public scope that jobs of every scope read."""
    imported: tuple[str, ...] = ()
    """Tables of the imported scope that the public scope's job reads."""
    sources: tuple[str, ...] = ()
    """Tables of the scope of rules that it also reads."""
    log: bool = False
    """Whether it reads the events of its scope."""
    answers: bool = False
    """Whether it queries predictors, which depend on the log's rules and constants."""
    parameters: tuple[str, ...] = ()

    @property
    def single(self) -> str:
        """The scope's name if the stage has only one, else an empty text."""
        return self.scopes[0] if len(self.scopes) == 1 and PLATFORM not in self.scopes else ""

    @property
    def modules(self) -> list[str]:
        """The modules whose imports it depends on: its own, and those of the tables it reads."""
        read = (*self.reads, *self.public, *self.imported, *self.sources)
        return [self.make.rpartition(".")[0], *(STAGE_OF[table].tables[table] for table in read)]

    def has(self, scope: str) -> bool:
        """Whether a scope has a job of this stage."""
        return kind(scope) in self.scopes

    def inputs(self, scope: str) -> list[tuple[str, str]]:
        """Return the tables that a scope's job reads, as (scope, table)."""
        own_tables = (*self.reads, *(self.sources if scope == SOURCES else ()))
        tables = [(scope, table) for table in own_tables if STAGE_OF[table].has(scope)]
        tables += [(PUBLIC, table) for table in self.public]
        if scope == PUBLIC:
            tables += [(IMPORTED, table) for table in self.imported]
        return list(dict.fromkeys(tables))


def _modules(room: str, *tables: str) -> dict[str, str]:
    """Return tables of one package, each declared in the module of its name."""
    return {table: f"{room}.{table}" for table in tables}


_TABLES, _SCORE, _OUTLOOK = (f"nearfree.derive.{room}" for room in ("tables", "score", "outlook"))
_KERNELS, _TUNING = "nearfree.derive.reference.kernels", "nearfree.derive.tune.table"
_PREDICTIONS, _CLAIMS = "nearfree.derive.predict.predictions", "nearfree.derive.claims"
_ALL = (
    Stage(
        name="project",
        make=f"{_TABLES}.project.project",
        scopes=(PLATFORM, PUBLIC, SOURCES),
        tables=_modules(
            _TABLES,
            *("platforms", "settings", "latency", "work", "time_shares", "granularity", "tuned"),
        ),
        log=True,
        parameters=("datasheets",),
    ),
    Stage(
        name="boundaries",
        make=f"{_TABLES}.boundaries.write_boundaries",
        scopes=(PLATFORM, PUBLIC),
        tables=dict.fromkeys(("boundaries", "sensitivity"), f"{_TABLES}.boundaries"),
        reads=("latency",),
        log=True,
        parameters=("tolerances", "epsilon"),
    ),
    Stage(
        name="engine_steps",
        make=f"{_TABLES}.engine_steps.write_engine_steps",
        scopes=(PLATFORM,),
        tables=_modules(_TABLES, "engine_steps"),
        reads=("latency",),
        log=True,
        answers=True,
    ),
    Stage(
        name="tuning",
        make=f"{_TUNING}.write_tuning",
        scopes=(PLATFORM,),
        tables={"tuning": _TUNING},
        log=True,
    ),
    Stage(
        name="predictions",
        make=f"{_PREDICTIONS}.write_predictions",
        scopes=(PLATFORM, PUBLIC),
        tables={"predictions": _PREDICTIONS},
        reads=("settings", "platforms", "latency"),
        log=True,
        answers=True,
        parameters=("tolerances", "datasheets"),
    ),
    Stage(
        name="validation",
        make=f"{_SCORE}.validation.write_validation",
        scopes=(PLATFORM, PUBLIC),
        tables=_modules(_SCORE, "validation", "composition", "scores"),
        reads=("boundaries", "predictions", "time_shares"),
        log=True,
    ),
    Stage(
        name="accuracy",
        make=f"{_SCORE}.accuracy.write_accuracy",
        scopes=(IMPORTED,),
        tables=dict.fromkeys(("accuracy", "drift"), f"{_SCORE}.accuracy"),
        log=True,
        answers=True,
        parameters=("epsilon", "datasheets"),
    ),
    Stage(
        name="outlook",
        make=f"{_OUTLOOK}.outlook.write_outlook",
        scopes=(PUBLIC,),
        tables={
            "lookup": f"{_OUTLOOK}.outlook",
            "forecast": f"{_OUTLOOK}.outlook",
            "published_lookup": f"{_OUTLOOK}.lookup",
            "trend": f"{_OUTLOOK}.trend",
            "version_drift": f"{_OUTLOOK}.drift",
        },
        reads=("platforms",),
        log=True,
        answers=True,
        parameters=("epsilon", "tolerances", "deployments"),
    ),
    Stage(
        name="schedules",
        make=f"{_OUTLOOK}.schedules.write_schedules",
        scopes=(PUBLIC,),
        tables={"schedules": f"{_OUTLOOK}.schedules"},
        reads=("platforms",),
        log=True,
        answers=True,
        parameters=("tolerances", "deployments"),
    ),
    Stage(
        name="kernels",
        make=f"{_KERNELS}.write_kernels",
        scopes=(PUBLIC,),
        tables={"kernels": _KERNELS},
        log=True,
        parameters=("epsilon",),
    ),
    Stage(
        name="claims",
        make=f"{_CLAIMS}.judge.write_claims",
        scopes=(PLATFORM, PUBLIC),
        tables={"claims": f"{_CLAIMS}.judge"},
        reads=(
            *("platforms", "latency", "work", "boundaries", "predictions", "composition"),
            *("trend", "published_lookup"),
        ),
        parameters=("epsilon",),
    ),
    Stage(
        name="figures",
        make="nearfree.show.figures.stage.draw",
        scopes=(PLATFORM, PUBLIC),
        reads=(
            *("latency", "work", "boundaries", "predictions", "validation", "time_shares"),
            *("composition", "lookup", "forecast", "trend", "version_drift", "kernels"),
            *("engine_steps", "tuning"),
        ),
        public=("boundaries", "predictions"),
        imported=("accuracy", "drift"),
        parameters=("imports", "epsilon"),
    ),
    Stage(
        name="report",
        make="nearfree.show.page.stage.write_report",
        scopes=(),
        reads=(
            *("platforms", "granularity", "settings", "latency", "work", "boundaries"),
            *("sensitivity", "predictions", "validation", "time_shares", "composition", "scores"),
            *("claims", "lookup", "forecast", "schedules", "published_lookup", "trend"),
            *("version_drift", "kernels", "engine_steps", "tuning"),
        ),
        imported=("accuracy",),
        sources=("tuned",),
        log=True,
        parameters=("imports", "epsilon"),
    ),
)
STAGES = {stage.name: stage for stage in _ALL}
"""Every stage by name, each after the stages whose tables it reads."""
STAGE_OF = {table: stage for stage in _ALL for table in stage.tables}
"""The stage that writes a table, by the table's name, those of observations first."""


def declared(table: str) -> Any:
    """Return a table by its name, from the module that its stage says."""
    return getattr(import_module(STAGE_OF[table].tables[table]), table.upper())


_OBSERVING = {
    "environment": "environment make",
    "probe": "probe",
    "foretell": "foretell",
    "measure": "measure",
    "publish": "import published",
    "extract": "rules extract",
    "import_curves": "import",
}
COMMANDS = {
    **_OBSERVING,
    **{stage.name: f"tables {stage.name}" for stage in _ALL if stage.tables},
    **{name: name for name in ("figures", "report", "ledger")},
}
"""The fixed words of each rule's command, by rule, in the workflow's order."""
