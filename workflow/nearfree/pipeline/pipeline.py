"""What the workflow's rules need to know: scopes, receipts, evidence and digests of code."""

import sys
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from msgspec import json

from nearfree.backends.environments.lock import OWN, Environment
from nearfree.config.files import Config
from nearfree.config.plans import Plans
from nearfree.core.modules.engine import EngineStudy
from nearfree.core.plan import (
    FORETOLD_SUFFIX,
    MODULES_SUFFIX,
    ForetellPlan,
    MeasurePlan,
    Plan,
    RequestedPlan,
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
from nearfree.measure.engine_files import missing
from nearfree.public.published import STREAM as PUBLISHED
from nearfree.public.published import import_plan
from nearfree.sources.packages import RULES, parse_release, reader_module
from nearfree.sources.record import extract_take, stream_name

CALIBRATED = ("constants", "collective_constants", "engine_step", "kernels")
"""The streams of the public scope that answers rest on: constants, and what is kept of curves."""
_IMPORTS = {"aiconfigurator": "aiconfigurator-core"}
"""The package behind each name that the config can ask to import."""


class Pipeline:
    """One results root under one config folder, as the rules see it.

    Raises
    ------
    ConfigError
        A config file does not fit; everything that rules use is checked at once.
    """

    def __init__(self, results: Path, config: Path) -> None:
        self.layout = Layout(results)
        self.config = Config(config)
        self.site = self.config.site
        plans_of = {scope: Plans(self.config, scope) for scope in self.site.here}
        self.unstudied = [each.nothing for each in plans_of.values() if each.nothing]
        """Why nothing is measured on a platform that is here, a sentence each."""
        every = {scope: each.all() for scope, each in plans_of.items()}
        self.left_out = {
            f"{scope}/{stream}": why
            for scope, plans in every.items()
            for stream, plan in plans.items()
            if (why := self._lacking(scope, stream, plan))
        }
        """Studies of engines whose files are not here, with what they lack and how to get it."""
        self._plans = {
            scope: {s: plan for s, plan in plans.items() if f"{scope}/{s}" not in self.left_out}
            for scope, plans in every.items()
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

    def _lacking(self, scope: str, stream: str, plan: RequestedPlan) -> str:
        """Return why an engine's stream cannot be measured; nothing of one that is sealed."""
        study = self.config.studies.get(stream)
        if not isinstance(study, EngineStudy):
            return ""
        if self.config.curves(scope):
            return "no engine is simulated"
        take = take_name(scope, stream, self.config.take(scope, stream), plan)
        lacking = [] if self.layout.seal(take).exists() else missing(self.config, study)
        return f"{' and '.join(lacking)} is not here: `nearfree fetch` gets it" if lacking else ""

    def _check_takes(self) -> None:
        for scope, streams in self.config.takes.items():
            if scope not in (*self.config.platforms, SOURCES):
                raise ConfigError(
                    f"{self.config.folder}/takes.yaml names the unknown platform {scope!r}",
                    remedy="Remove it",
                )
            known = self.releases if scope == SOURCES else Plans(self.config, scope).streams
            for stream in streams:
                if stream not in known:
                    what = "release" if scope == SOURCES else "study"
                    raise ConfigError(
                        f"{self.config.folder}/takes.yaml: {scope} has no {what} {stream!r}",
                        remedy="Remove it",
                    )

    @cached_property
    def measured(self) -> list[str]:
        """Streams of this machine's platforms that are measured."""
        return self._streams(MeasurePlan)

    @cached_property
    def foretold(self) -> list[str]:
        """Streams of predictions that are on record before a model is measured."""
        return self._streams(ForetellPlan)

    def _streams(self, kind: type[RequestedPlan]) -> list[str]:
        plans = [named for by_stream in self._plans.values() for named in by_stream.items()]
        return sorted({stream for stream, plan in plans if isinstance(plan, kind)})

    @cached_property
    def _sealed(self) -> dict[str, list[TakeName]]:
        takes: dict[str, list[TakeName]] = defaultdict(list)
        for take in self.layout.takes():
            takes[take.scope].append(take)
        return dict(takes)

    @cached_property
    def recorded(self) -> list[str]:
        """Platforms with sealed takes that are not this machine."""
        return sorted(self._sealed.keys() - {PUBLIC, SOURCES, IMPORTED, *self.site.here})

    @cached_property
    def platforms(self) -> list[str]:
        """Platforms that there is or will be something to draw of."""
        return [*self.site.here, *self.recorded]

    @cached_property
    def scopes(self) -> list[str]:
        """Every scope that has all tables."""
        return [*self.platforms, PUBLIC]

    @cached_property
    def sources(self) -> list[str]:
        """The scope of rules, if a release is asked for or on record; it has no boundaries."""
        return [SOURCES] if self.releases or SOURCES in self._sealed else []

    @property
    def imported(self) -> list[str]:
        """The scope of imported curves, if the config asks for an import."""
        return [IMPORTED] if self.imports else []

    @property
    def unsealed_imports(self) -> list[str]:
        """Streams of imports that the config asks for and that have no sealed take."""
        sealed = {take.stream for take in self._sealed.get(IMPORTED, [])}
        return [stream for stream in self.imports if stream not in sealed]

    @property
    def imported_beside(self) -> list[str]:
        """Seals in the scope of imported curves of takes that no import of the config makes.

        None if the config asks for no import: then nothing rests on them.
        """
        takes = self._sealed.get(IMPORTED, []) if self.imports else []
        beside = (take for take in takes if take.stream not in self.imports or take.take > 1)
        return [str(self.layout.seal(take)) for take in beside]

    def answering(self) -> list[str]:
        """Return what predictions rest on besides a scope's tables: rules, constants, curves.

        A retraction may be of one of them.
        """
        streams = (*CALIBRATED, RETRACTED)
        calibrated = [take for take in self._sealed.get(PUBLIC, []) if take.stream in streams]
        return [
            *(file for scope in self.sources for file in self.evidence(scope)),
            *(str(self.layout.seal(take)) for take in calibrated),
        ]

    def scopes_of(self, stage: Stage) -> list[str]:
        """Return the scopes that a stage has a job of."""
        every = [*self.scopes, *self.sources, *self.imported]
        return [scope for scope in every if stage.has(scope)]

    def outputs(self, stage: Stage) -> list[str]:
        """Return the files that a stage writes, of any scope where it has several."""
        scope = stage.single or "{scope}"
        seals = [self.seals_root(scope)] if "platforms" in stage.tables else []
        return [*self.table(scope, *stage.tables), *seals]

    def inputs(self, stage: Stage, scope: str = "") -> list[str]:
        """Return the files that a stage's job reads: tables, and what stands for the log.

        Parameters
        ----------
        scope
            Its scope; empty where the stage is of all scopes together.
        """
        scopes = [scope] if scope else [*self.scopes, *self.sources]
        tables = [table for name in scopes for table in stage.inputs(name)]
        return [
            *(file for name in scopes for file in self._log(stage, name)),
            *(self.answering() if stage.answers else []),
            *(
                str(self.layout.table(owner, name))
                for owner, name in tables
                if owner != IMPORTED or self.imported
            ),
        ]

    def _log(self, stage: Stage, scope: str) -> list[str]:
        """Return what stands for the events that are read.

        Of what an import of the config makes its rule's mark does; seals do of takes beside it.
        """
        if not stage.log:
            return []
        if scope == IMPORTED:
            return self.imported_beside
        return [self.seals_root(scope)] if stage.reads else self.evidence(scope)

    def parameters(self, stage: Stage, scope: str = "") -> dict[str, object]:
        """Return the values of the config that a stage's job depends on, or digests of them."""
        values: dict[str, Callable[[], object]] = {
            "tolerances": lambda: self.site.tolerances,
            "epsilon": lambda: self.site.epsilon,
            "imports": lambda: self.site.imports if scope in ("", PUBLIC) else (),
            # answers look for relatives of a chip among all platforms
            "datasheets": lambda: self.datasheets(PUBLIC if stage.answers else scope),
            "deployments": self.deployments,
        }
        return {name: values[name]() for name in stage.parameters}

    def deployments(self) -> str:
        """Return a digest of the deployments, and of the files of the models that they name."""
        deployments, own = self.config.deployments, self.config.folder / "models"
        raw = json.encode(deployments, order="deterministic")
        raw += b"".join(
            f"{name}.json".encode() + (own / f"{name}.json").read_bytes()
            for name in decoder_names(self.config.folder)
        )
        for model in sorted({name for spec in deployments.values() for name in spec.models}):
            with suppress(NearfreeError):  # the stage says what is wrong with it
                path = find_file(self.config.folder, model)
                if path.parent != own:
                    raw += json.encode(read_model_file(path))
        return sha256(raw)[:16]

    def release(self, stream: str) -> str:
        """Return the release that a stream of rules is of, as package==version."""
        return "==".join(self.releases[stream])

    @cache  # noqa: B019 (a pipeline lives as long as the program)
    def requested(self, scope: str) -> list[TakeName]:
        """Return the takes of a scope that the config asks for."""
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
        """Return what a scope's tables rest on: receipts of requested takes, other takes' seals."""
        requested = self.requested(scope)
        seals = [take for take in self._sealed.get(scope, []) if take not in requested]
        return [
            *(str(self.layout.receipt(take)) for take in requested),
            *(str(self.layout.seal(take)) for take in seals),
        ]

    @property
    def targets(self) -> dict[str, list[str]]:
        """Return the receipts of what can be asked for by name: PLATFORM/STUDY and the like.

        A backend's name stands for every study that runs on it, unless a study has that name.
        """
        receipts: dict[str, list[str]] = defaultdict(list)
        for scope in self.site.here:
            own = self._receipts(scope)
            for stream, receipt in own.items():
                study = stream.removesuffix(MODULES_SUFFIX).removesuffix(FORETOLD_SUFFIX)
                names = {stream, study}
                if study in self.config.studies:
                    names |= self.config.backends_of(study) - own.keys()
                for name in names:
                    receipts[f"{scope}/{name}"].append(receipt)
        for take in self.requested(SOURCES):
            receipts[f"{SOURCES}/{take.stream}"].append(str(self.layout.receipt(take)))
        return receipts

    def before(self, scope: str, stream: str) -> list[str]:
        """Return the receipts that a stream of a platform waits for.

        A study waits for the probe, one of a model also for what is foretold of it, and that for
        the model's modules.
        """
        study = stream.removesuffix(FORETOLD_SUFFIX)
        first = f"{study}{MODULES_SUFFIX}" if study != stream else f"{study}{FORETOLD_SUFFIX}"
        receipts = self._receipts(scope)
        return [receipts[name] for name in (HARDWARE, first) if name in receipts]

    @cache  # noqa: B019 (a pipeline lives as long as the program)
    def _receipts(self, scope: str) -> dict[str, str]:
        return {take.stream: str(self.layout.receipt(take)) for take in self.requested(scope)}

    def python(self, scope: str, stream: str) -> str:
        """Return the interpreter of a stream's environment: config's, this one, or one made."""
        name = self._environment(scope, stream)
        if name in self.site.python:
            return self.site.python[name]
        return sys.executable if name == OWN else str(self._made(name).python)

    def interpreters(self, scope: str) -> dict[str, str]:
        """Return the interpreters that a platform's streams run in, by their environments."""
        streams = self._plans[scope]
        return {self._environment(scope, name): self.python(scope, name) for name in streams}

    def environment(self, scope: str, stream: str, *, renew: bool = False) -> list[str]:
        """Return the receipt of the environment that is made for a stream, if one has to be.

        Parameters
        ----------
        renew
            Whether to let go of a receipt whose environment was made elsewhere: the project moved.
        """
        name = self._environment(scope, stream)
        if name == OWN or name in self.site.python:
            return []
        made = self._made(name)
        if renew and not made.complete:
            made.receipt.unlink(missing_ok=True)
        return [str(made.receipt)]

    def _environment(self, scope: str, stream: str) -> str:
        plan = self._plans[scope][stream]
        return plan.environment if isinstance(plan, MeasurePlan) and not plan.curves else OWN

    @cache  # noqa: B019 (a pipeline lives as long as the program)
    def _made(self, name: str) -> Environment:
        return Environment(name)

    def simulated(self, scope: str) -> str:
        """Return the option that names a simulated platform's curve file, nothing where real."""
        path = self.config.curves(scope)
        return "" if path is None else f" --curves {path}"

    def resource(self, name: str, scope: str, stream: str, attempt: int) -> Any:
        """Return one of the resources that a stream's SLURM job asks for, None for SLURM's own."""
        study = stream.removesuffix(MODULES_SUFFIX).removesuffix(FORETOLD_SUFFIX)
        return self.config.job_resources(scope, study).resources(attempt)[name]

    def table(self, scope: str, *names: str) -> list[str]:
        """Return the files of a scope's tables."""
        return [str(self.layout.table(scope, name)) for name in names]

    def seals_root(self, scope: str) -> str:
        """Return a file that the stage `project` writes, with a digest of the scope's seals."""
        return str(manifest_path(self.layout.table(scope, "platforms")))

    def datasheets(self, scope: str) -> str:
        """Return a digest of the datasheets that a scope uses."""
        raw = json.encode(self.config.datasheets(scope), order="deterministic")
        return sha256(raw)[:16]

    def config_digest(self) -> str:
        """Return a digest of every config file, which a ledger holds."""
        return sha256(json.encode(config_texts(self.config.folder)))[:16]

    @staticmethod
    @cache
    def code(stage: str) -> str:
        """Return a digest of the code that makes a stage's output.

        What answers asks the packages' readers, which it names by text: no import leads there.
        """
        if stage not in STAGES:
            return package_digest()
        readers = map(reader_module, RULES) if STAGES[stage].answers else ()
        return digest(*STAGES[stage].modules, *readers)
