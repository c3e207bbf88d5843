"""The workflow's rules in Python: scopes, input and output files, receipts, digests of code."""

import sys
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from msgspec import json

from nearfree.backends.environments.lock import WORKFLOW_ENVIRONMENT, Environment
from nearfree.config.files import Config
from nearfree.config.plans import Plans, stream_backends
from nearfree.core.modules.engine import EngineStudy
from nearfree.core.plan import (
    MODULES_SUFFIX,
    PREDICTIONS_SUFFIX,
    ForetellPlan,
    MeasurePlan,
    Plan,
    RequestedPlan,
    study_of,
)
from nearfree.core.scopes import IMPORTED, PUBLIC, SOURCES
from nearfree.decoders.config_file import decoder_names, find_file
from nearfree.decoders.model_file import read_model_file
from nearfree.derive.stages import STAGES, Stage
from nearfree.errors import ConfigError, NearfreeError
from nearfree.hardware.identity import STREAM as HARDWARE
from nearfree.log.codebase import digest, package_digest
from nearfree.log.document import manifest_path
from nearfree.log.evidence import RETRACTED
from nearfree.log.ledger import config_texts
from nearfree.log.line import sha256
from nearfree.log.names import Layout, TakeName
from nearfree.log.take import take_name
from nearfree.measure.engine_files import missing_files
from nearfree.public.published import STREAM as PUBLISHED
from nearfree.public.published import import_plan
from nearfree.sources.packages import RULES, parse_release, reader_module
from nearfree.sources.record import extract_take, stream_name

CALIBRATED = ("constants", "collective_constants", "engine_step", "kernels")
"""The public scope's streams that predictions use: fitted constants, and curves of kernels."""
_IMPORTS = {"aiconfigurator": "aiconfigurator-core"}
"""The package of each name under `imports` in the config."""


class Pipeline:
    """One results root with one config folder, as the workflow's rules use them.

    Raises
    ------
    ConfigError
        A config file is invalid; every file that the rules use is checked here.
    """

    def __init__(self, results: Path, config: Path) -> None:
        self.layout = Layout(results)
        self.config = Config(config)
        self.site = self.config.site
        plans_of = {scope: Plans(self.config, scope) for scope in self.site.here}
        self.no_study_reasons = [plans.nothing for plans in plans_of.values() if plans.nothing]
        """One sentence per platform of this machine on which nothing is measured: why."""
        plans_by_scope = {scope: plans.all() for scope, plans in plans_of.items()}
        self.skip_reasons = {
            f"{scope}/{stream}": reason
            for scope, plans in plans_by_scope.items()
            for stream, plan in plans.items()
            if (reason := self._skip_reason(scope, stream, plan))
        }
        """Engine studies (`scope/stream`) that cannot run here: what is missing, how to get it."""
        self._plans = {
            scope: {s: plan for s, plan in plans.items() if f"{scope}/{s}" not in self.skip_reasons}
            for scope, plans in plans_by_scope.items()
        }
        self.releases = {
            stream_name(*release): release for release in map(parse_release, self.config.releases)
        }
        imports = (release.split("==") for release in self.site.imports)
        self.imports = {
            stream_name(_IMPORTS[name], version): (name, version) for name, version in imports
        }
        self._check_takes()
        _ = self.config.cluster

    def _skip_reason(self, scope: str, stream: str, plan: RequestedPlan) -> str:
        """Return why an engine's stream cannot be measured; empty if it can, or is sealed."""
        study = self.config.studies.get(stream)
        if not isinstance(study, EngineStudy):
            return ""
        if self.config.curves(scope):
            return "no engine is simulated"
        take = take_name(scope, stream, self.config.take(scope, stream), plan)
        files = [] if self.layout.seal(take).exists() else missing_files(self.config, study)
        return f"{' and '.join(files)} is not here: `nearfree fetch` gets it" if files else ""

    def _check_takes(self) -> None:
        for scope, streams in self.config.takes.items():
            if scope not in (*self.config.platforms, SOURCES):
                raise ConfigError(
                    f"{self.config.folder}/takes.yaml names the unknown platform {scope!r}",
                    remedy="Remove it",
                )
            known_streams = self.releases if scope == SOURCES else Plans(self.config, scope).streams
            for stream in streams:
                if stream not in known_streams:
                    kind = "release" if scope == SOURCES else "study"
                    raise ConfigError(
                        f"{self.config.folder}/takes.yaml: {scope} has no {kind} {stream!r}",
                        remedy="Remove it",
                    )

    @cached_property
    def measure_streams(self) -> list[str]:
        """The streams of measurements on this machine's platforms."""
        return self._streams(MeasurePlan)

    @cached_property
    def foretell_streams(self) -> list[str]:
        """The streams of predictions that are recorded before a model is measured."""
        return self._streams(ForetellPlan)

    def _streams(self, kind: type[RequestedPlan]) -> list[str]:
        plans = [items for by_stream in self._plans.values() for items in by_stream.items()]
        return sorted({stream for stream, plan in plans if isinstance(plan, kind)})

    @cached_property
    def _sealed(self) -> dict[str, list[TakeName]]:
        takes: dict[str, list[TakeName]] = defaultdict(list)
        for take in self.layout.takes():
            takes[take.scope].append(take)
        return dict(takes)

    @cached_property
    def recorded_platforms(self) -> list[str]:
        """Other machines' platforms that have sealed takes in this log."""
        return sorted(self._sealed.keys() - {PUBLIC, SOURCES, IMPORTED, *self.site.here})

    @cached_property
    def platforms(self) -> list[str]:
        """Platforms that get figures: this machine's, and those with sealed takes."""
        return [*self.site.here, *self.recorded_platforms]

    @cached_property
    def scopes(self) -> list[str]:
        """The scopes for which every table is made."""
        return [*self.platforms, PUBLIC]

    @cached_property
    def sources(self) -> list[str]:
        """The scope of source rules, if the config or the log has a release; else nothing."""
        return [SOURCES] if self.releases or SOURCES in self._sealed else []

    @property
    def imported(self) -> list[str]:
        """The scope of imported curves, if the config has an import; else nothing."""
        return [IMPORTED] if self.imports else []

    @property
    def unsealed_imports(self) -> list[str]:
        """The config's imports that have no sealed take yet."""
        sealed = {take.stream for take in self._sealed.get(IMPORTED, [])}
        return [stream for stream in self.imports if stream not in sealed]

    @property
    def extra_import_seals(self) -> list[str]:
        """Seals of imported takes that no import of the config makes.

        Empty if the config has no import: then no table reads the imported scope.
        """
        takes = self._sealed.get(IMPORTED, []) if self.imports else []
        extra = (take for take in takes if take.stream not in self.imports or take.take > 1)
        return [str(self.layout.seal(take)) for take in extra]

    def answer_inputs(self) -> list[str]:
        """Return the files that predictions read besides tables: rules, constants, curves.

        Retractions are among them, since one may retract such an event.
        """
        streams = (*CALIBRATED, RETRACTED)
        calibrated = [take for take in self._sealed.get(PUBLIC, []) if take.stream in streams]
        return [
            *(file for scope in self.sources for file in self.evidence(scope)),
            *(str(self.layout.seal(take)) for take in calibrated),
        ]

    def scopes_of(self, stage: Stage) -> list[str]:
        """Return the scopes for which a stage has a job."""
        scopes = [*self.scopes, *self.sources, *self.imported]
        return [scope for scope in scopes if stage.has(scope)]

    def outputs(self, stage: Stage) -> list[str]:
        """Return the files that a stage writes; with `{scope}` in them if it has several jobs."""
        scope = stage.single or "{scope}"
        seals = [self.seals_root(scope)] if "platforms" in stage.tables else []
        return [*self.table(scope, *stage.tables), *seals]

    def inputs(self, stage: Stage, scope: str = "") -> list[str]:
        """Return the files that a stage's job reads: tables, and files that represent the log.

        Parameters
        ----------
        scope
            The job's scope; empty for a stage with one job for all scopes.
        """
        scopes = [scope] if scope else [*self.scopes, *self.sources]
        tables = [table for name in scopes for table in stage.inputs(name)]
        return [
            *(file for name in scopes for file in self._log(stage, name)),
            *(self.answer_inputs() if stage.answers else []),
            *(
                str(self.layout.table(owner, name))
                for owner, name in tables
                if owner != IMPORTED or self.imported
            ),
        ]

    def _log(self, stage: Stage, scope: str) -> list[str]:
        """Return the files that change when the events that a job reads change.

        The imports of the config have the rule's own mark instead; other imports have their seals.
        """
        if not stage.log:
            return []
        if scope == IMPORTED:
            return self.extra_import_seals
        return [self.seals_root(scope)] if stage.reads else self.evidence(scope)

    def parameters(self, stage: Stage, scope: str = "") -> dict[str, object]:
        """Return the config values that a stage's job depends on, or their digests."""
        values: dict[str, Callable[[], object]] = {
            "tolerances": lambda: self.site.tolerances,
            "epsilon": lambda: self.site.epsilon,
            "imports": lambda: self.site.imports if scope in ("", PUBLIC) else (),
            # Predictions look for similar chips among all platforms.
            "datasheets": lambda: self.datasheets(PUBLIC if stage.answers else scope),
            "deployments": self.deployments,
        }
        return {name: values[name]() for name in stage.parameters}

    def deployments(self) -> str:
        """Return a digest of the deployments and of the model files that they name."""
        deployments, models_folder = self.config.deployments, self.config.folder / "models"
        raw = json.encode(deployments, order="deterministic")
        raw += b"".join(
            f"{name}.json".encode() + (models_folder / f"{name}.json").read_bytes()
            for name in decoder_names(self.config.folder)
        )
        for model in sorted({name for spec in deployments.values() for name in spec.models}):
            with suppress(NearfreeError):  # the stage itself reports a bad model file
                path = find_file(self.config.folder, model)
                if path.parent != models_folder:
                    raw += json.encode(read_model_file(path))
        return sha256(raw)[:16]

    def release(self, stream: str) -> str:
        """Return the release of a stream of rules, as `package==version`."""
        return "==".join(self.releases[stream])

    @cache  # noqa: B019 (a pipeline lives as long as the program)
    def requested_takes(self, scope: str) -> list[TakeName]:
        """Return the takes that the config requests in a scope."""
        if scope == SOURCES:
            return [
                extract_take(*release, self.config.take(SOURCES, stream))
                for stream, release in self.releases.items()
            ]
        plans: dict[str, Plan] = {}
        if scope == PUBLIC:
            plans[PUBLISHED] = import_plan(self.config.folder / "published")
        elif scope in self.site.here:
            plans |= self._plans[scope]
        return [
            take_name(scope, stream, self.config.take(scope, stream), plan)
            for stream, plan in plans.items()
        ]

    @cache  # noqa: B019 (a pipeline lives as long as the program)
    def evidence(self, scope: str) -> list[str]:
        """Return the evidence of a scope's tables: receipts of requested takes, seals of others."""
        requested = self.requested_takes(scope)
        seals = [take for take in self._sealed.get(scope, []) if take not in requested]
        return [
            *(str(self.layout.receipt(take)) for take in requested),
            *(str(self.layout.seal(take)) for take in seals),
        ]

    @property
    def targets(self) -> dict[str, list[str]]:
        """Return the receipts behind each named target: PLATFORM/STUDY, PLATFORM/BACKEND, releases.

        A backend's name stands for every study that runs on it, unless a study has that name.
        """
        receipts: dict[str, list[str]] = defaultdict(list)
        for scope in self.site.here:
            receipt_of = self._receipts(scope)
            for stream, receipt in receipt_of.items():
                backends = stream_backends(self.config, stream) - receipt_of.keys()
                for name in {stream, study_of(stream), *backends}:
                    receipts[f"{scope}/{name}"].append(receipt)
        for take in self.requested_takes(SOURCES):
            receipts[f"{SOURCES}/{take.stream}"].append(str(self.layout.receipt(take)))
        return receipts

    def prerequisites(self, scope: str, stream: str) -> list[str]:
        """Return the receipts that must exist before a stream of a platform is observed.

        Every study waits for the probe. A model's study also waits for the model's recorded
        prediction, and that prediction for the measurement of the model's modules.
        """
        study = stream.removesuffix(PREDICTIONS_SUFFIX)
        suffix = PREDICTIONS_SUFFIX if study == stream else MODULES_SUFFIX
        receipts = self._receipts(scope)
        return [receipts[name] for name in (HARDWARE, f"{study}{suffix}") if name in receipts]

    @cache  # noqa: B019 (a pipeline lives as long as the program)
    def _receipts(self, scope: str) -> dict[str, str]:
        return {take.stream: str(self.layout.receipt(take)) for take in self.requested_takes(scope)}

    def python(self, scope: str, stream: str) -> str:
        """Return the interpreter for a stream: the config's, this one, or that of a made one."""
        name = self._environment(scope, stream)
        if name in self.site.python:
            return self.site.python[name]
        own = name == WORKFLOW_ENVIRONMENT
        return sys.executable if own else str(self._made_environment(name).python)

    def interpreters(self, scope: str) -> dict[str, str]:
        """Return the interpreters of a platform's streams, by the name of their environment."""
        streams = self._plans[scope]
        return {self._environment(scope, name): self.python(scope, name) for name in streams}

    def environment(self, scope: str, stream: str, *, renew: bool = False) -> list[str]:
        """Return the receipt of the environment to make for a stream; empty if none is needed.

        With `renew` the receipt of an environment that is incomplete here, as after the project was
        moved, is deleted.
        """
        name = self._environment(scope, stream)
        if name == WORKFLOW_ENVIRONMENT or name in self.site.python:
            return []
        environment = self._made_environment(name)
        if renew and not environment.complete:
            environment.receipt.unlink(missing_ok=True)
        return [str(environment.receipt)]

    def _environment(self, scope: str, stream: str) -> str:
        plan = self._plans[scope][stream]
        if isinstance(plan, MeasurePlan) and not plan.curves:
            return plan.environment
        return WORKFLOW_ENVIRONMENT

    @cache  # noqa: B019 (a pipeline lives as long as the program)
    def _made_environment(self, name: str) -> Environment:
        return Environment(name)

    def simulated(self, scope: str) -> str:
        """Return the option that names a simulated platform's curve file; empty for a real one."""
        path = self.config.curves(scope)
        return "" if path is None else f" --curves {path}"

    def resource(self, name: str, scope: str, stream: str, attempt: int) -> Any:
        """Return a resource of a stream's SLURM job; None leaves it to SLURM's default."""
        return self.config.job_resources(scope, study_of(stream)).resources(attempt)[name]

    def table(self, scope: str, *names: str) -> list[str]:
        """Return the files of a scope's tables."""
        return [str(self.layout.table(scope, name)) for name in names]

    def seals_root(self, scope: str) -> str:
        """Return the file with a digest of the scope's seals, which the stage `project` writes."""
        return str(manifest_path(self.layout.table(scope, "platforms")))

    def datasheets(self, scope: str) -> str:
        """Return a digest of the datasheets of a scope's platforms."""
        raw = json.encode(self.config.datasheets(scope), order="deterministic")
        return sha256(raw)[:16]

    def config_digest(self) -> str:
        """Return a digest of every config file that a ledger records."""
        return sha256(json.encode(config_texts(self.config.folder)))[:16]

    @staticmethod
    @cache
    def code(stage: str) -> str:
        """Return a digest of the code that makes a stage's output.

        Source readers of packages are added for stages that predict, which load them by name alone.
        """
        if stage not in STAGES:
            return package_digest()
        readers = map(reader_module, RULES) if STAGES[stage].answers else ()
        return digest(*STAGES[stage].modules, *readers)
