"""The streams of a platform, their plans, and requests for further takes.

Only this module writes a config file, config/takes.yaml.
"""

from functools import cached_property

import yaml
from msgspec import UNSET, UnsetType

from nearfree.backends.builds import engine_environment
from nearfree.config.files import Config
from nearfree.config.model_studies import module_sweeps
from nearfree.core.modules.engine import EngineStudy
from nearfree.core.modules.model import ModelStudy
from nearfree.core.modules.study import StudyBase
from nearfree.core.names import Name
from nearfree.core.plan import (
    MODULES_SUFFIX,
    PREDICTIONS_SUFFIX,
    ForetellPlan,
    MeasurePlan,
    ProbePlan,
    RequestedPlan,
    Sweep,
    study_of,
)
from nearfree.errors import ConfigError
from nearfree.hardware.identity import STREAM as HARDWARE
from nearfree.hardware.simulated import read_curves
from nearfree.log.document import locked_file, replace
from nearfree.log.line import sha256
from nearfree.log.names import Layout

_TORCH = "cpu"
"""The environment of torch; every other environment includes torch, too."""


class Plans:
    """The plans of a platform's streams, in the order in which they should be made.

    A study is a stream with its name. A study of a model has two more streams before it: its
    modules measured separately (unless it has only the model's own routing), and predictions.
    """

    def __init__(self, config: Config, scope: str) -> None:
        self._config, self._scope = config, scope

    @cached_property
    def measured(self) -> dict[str, str]:
        """The study of each measured stream."""
        streams = {}
        for name in self._config.studied(self._scope):
            study = self._config.studies[name]
            if isinstance(study, ModelStudy) and self._module_sweeps(study):
                streams[f"{name}{MODULES_SUFFIX}"] = name
            streams[name] = name
        return streams

    @cached_property
    def foretold(self) -> dict[str, str]:
        """The study of each stream of predictions."""
        studies = self._config.studies
        return {
            f"{name}{PREDICTIONS_SUFFIX}": name
            for name in self._config.studied(self._scope)
            if isinstance(studies[name], ModelStudy)
        }

    @cached_property
    def curves(self) -> str | UnsetType:
        """The digest of the curve file, if the platform is simulated."""
        path = self._config.curves(self._scope)
        return UNSET if path is None else sha256(read_curves(path, self._scope))

    def _module_sweeps(self, study: ModelStudy) -> tuple[Sweep, ...]:
        return module_sweeps(study, self._config.model(study.model))

    @cached_property
    def streams(self) -> list[str]:
        """All streams of the platform: the probe's, then each study's after its dependencies."""
        streams = [HARDWARE]
        for stream, study in self.measured.items():
            foretold = f"{study}{PREDICTIONS_SUFFIX}"
            streams += [foretold] * (stream == study and foretold in self.foretold)
            streams.append(stream)
        return streams

    @property
    def nothing(self) -> str:
        """The reason why only the hardware is probed, and the remedy; empty with a study."""
        if self.measured:
            return ""
        site = self._config.site
        restriction = " that is not left out" if site.without else ""
        return (
            f"no study of the sets {', '.join(site.sets)}{restriction} names {self._scope}, so "
            "only its hardware is probed. Name it under `platforms` of studies in "
            f"{self._config.folder}/studies.yaml"
        )

    def all(self) -> dict[str, RequestedPlan]:
        """Return the plan of every stream of the platform."""
        plans: dict[str, RequestedPlan] = {HARDWARE: self.probe()}
        for stream in self.streams[1:]:
            foretold = stream in self.foretold
            plans[stream] = self.foretell(stream) if foretold else self.measure(stream)
        return plans

    def probe(self) -> ProbePlan:
        """Return the plan of a probe; ConfigError if there is no such platform."""
        self._config.platform(self._scope)
        return ProbePlan(dtypes=("bfloat16", "float16", "float32"), curves=self.curves)

    def measure(self, stream: str) -> MeasurePlan:
        """Return the plan of a measured stream; ConfigError if there is none."""
        if stream in self.foretold:
            raise ConfigError(
                f"{stream} is foretold, not measured",
                remedy=f"Use `nearfree foretell {self._scope} {self.foretold[stream]}`",
            )
        name = self.measured.get(stream, stream)
        study = self._config.study(self._scope, name)
        protocol, models, weights = study.protocol, {}, {}
        if isinstance(study, EngineStudy):
            weights = {study.model: self._config.weights_of(study)}
        if isinstance(study, ModelStudy):
            if stream == name:
                models = {study.model: self._config.model(study.model).plain}
            else:
                protocol = study.apart
        return MeasurePlan(
            sweeps=self.sweeps(stream),
            protocol=protocol,
            environment=self.environment(study),
            models=models,
            weights=weights,
            curves=self.curves,
        )

    def sweeps(self, stream: str) -> tuple[Sweep, ...]:
        """Return the sweeps of a measured stream."""
        name = self.measured.get(stream, stream)
        study = self._config.study(self._scope, name)
        if isinstance(study, ModelStudy) and stream != name:
            return self._module_sweeps(study)
        return self._config.sweeps(name)

    def foretell(self, stream: str) -> ForetellPlan:
        """Return the plan of a stream of predictions; ConfigError if there is none."""
        name = self.foretold.get(stream, "")
        study = self._config.studies.get(name)
        if not isinstance(study, ModelStudy):
            raise ConfigError(
                f"{self._scope} has no stream {stream!r} of predictions",
                remedy=f"Its studies of models: {', '.join(self.foretold.values()) or 'none'}",
            )
        model = self._config.model(study.model)
        return ForetellPlan(
            sweeps=self._config.sweeps(name),
            models={study.model: model.plain},
            tolerances=self._config.site.tolerances,
            curves=self.curves,
        )

    def environment(self, study: StudyBase) -> Name:
        """Return the environment of a study: an engine's, if it runs the model's experts."""
        if isinstance(study, EngineStudy):
            return engine_environment(study.backend, study.release)
        own = self._config.environments[study.backend]
        if not isinstance(study, ModelStudy) or study.moe is None:
            return own
        engine = self._config.environments[study.moe]
        return own if engine == _TORCH else engine


def raise_takes(
    config: Config,
    layout: Layout,
    scope: str,
    study: str | None = None,
    backend: str | None = None,
) -> dict[str, int]:
    """Request the take after the newest one of a platform's streams; return the takes by stream.

    Parameters
    ----------
    study
        The one stream to request; None for those of all studies.
    backend
        If given, only streams of studies on this backend.

    Raises
    ------
    ConfigError
        The platform has no such study, or none on that backend.
    BusyError
        Another process is requesting takes.
    """
    all_streams = Plans(config, scope).streams
    if study is not None and study not in all_streams:
        config.study(scope, study)
    streams = [study] if study else all_streams[1:]  # without the probe
    if backend is not None:
        streams = [name for name in streams if backend in stream_backends(config, name)]
        if not streams:
            studied = config.studied(scope)
            backends = sorted({each for name in studied for each in config.backends_of(name)})
            raise ConfigError(
                f"none of the named studies of {scope} runs on {backend!r}",
                remedy=f"Backends there: {', '.join(backends) or 'none'}",
            )
    if study and study.endswith(MODULES_SUFFIX):  # predictions depend on the modules' takes
        streams.append(f"{study.removesuffix(MODULES_SUFFIX)}{PREDICTIONS_SUFFIX}")
    with locked_file(config.folder / "takes.yaml"):
        current = Config(config.folder)  # another process may have raised takes in the meantime
        raised = {}
        for stream in streams:
            sealed = [take.take for take in layout.takes(scope, stream)]
            raised[stream] = max([current.take(scope, stream), *sealed]) + 1
        takes = {**current.takes, scope: {**current.takes.get(scope, {}), **raised}}
        text = "# Which take is asked for; written by `nearfree retake`.\n" + yaml.safe_dump(takes)
        replace(config.folder / "takes.yaml", text.encode())
    return raised


def stream_backends(config: Config, stream: str) -> set[str]:
    """Return the backends on which a stream's study runs; none for the probe."""
    study = study_of(stream)
    return config.backends_of(study) if study in config.studies else set()
