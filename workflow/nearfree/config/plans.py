"""What is asked of a platform: its streams, and the plan of each."""

from functools import cached_property

from msgspec import UNSET, UnsetType

from nearfree.config.files import Config
from nearfree.config.model_studies import module_sweeps
from nearfree.core.modules.model import ModelStudy
from nearfree.core.modules.study import StudyBase
from nearfree.core.plan import (
    FORETOLD,
    MODULES,
    AskedPlan,
    ForetellPlan,
    MeasurePlan,
    ProbePlan,
    Sweep,
)
from nearfree.core.setting import Name
from nearfree.errors import ConfigError
from nearfree.hardware.identity import STREAM as HARDWARE
from nearfree.hardware.simulated import read_curves
from nearfree.log.line import sha256

_TORCH = "cpu"
"""The environment of torch alone, which every other one holds, too."""


class Plans:
    """The plans of a platform's streams, in the order in which they are best made.

    A study is a stream of its name. One of a model has two more before it: its modules measured
    apart, unless the model's own router alone decides what they do, and what is foretold of it.
    """

    def __init__(self, config: Config, scope: str) -> None:
        self._config, self._scope = config, scope

    @cached_property
    def measured(self) -> dict[str, str]:
        """The study of each stream that is measured."""
        found = {}
        for name in self._config.studied(self._scope):
            study = self._config.studies[name]
            if isinstance(study, ModelStudy) and self._apart(study):
                found[f"{name}{MODULES}"] = name
            found[name] = name
        return found

    @cached_property
    def foretold(self) -> dict[str, str]:
        """The study of each stream of predictions."""
        studies = self._config.studies
        return {
            f"{name}{FORETOLD}": name
            for name in self._config.studied(self._scope)
            if isinstance(studies[name], ModelStudy)
        }

    @cached_property
    def curves(self) -> str | UnsetType:
        """The digest of the curve file, if the platform is simulated."""
        path = self._config.curves(self._scope)
        return UNSET if path is None else sha256(read_curves(path, self._scope))

    def _apart(self, study: ModelStudy) -> tuple[Sweep, ...]:
        return module_sweeps(study, self._config.model(study.model))

    def every(self) -> dict[str, AskedPlan]:
        """Return the plan of every stream of the platform."""
        found: dict[str, AskedPlan] = {HARDWARE: self.probe()}
        for stream, study in self.measured.items():
            if stream == study and f"{study}{FORETOLD}" in self.foretold:
                found[f"{study}{FORETOLD}"] = self.foretell(f"{study}{FORETOLD}")
            found[stream] = self.measure(stream)
        return found

    def probe(self) -> ProbePlan:
        """Return what a probe tries; ConfigError if there is no such platform."""
        self._config.platform(self._scope)
        return ProbePlan(dtypes=("bfloat16", "float16", "float32"), curves=self.curves)

    def measure(self, stream: str) -> MeasurePlan:
        """Return the plan of a stream that is measured; ConfigError if there is none."""
        if stream in self.foretold:
            raise ConfigError(
                f"{stream} is foretold, not measured",
                remedy=f"Use `nearfree foretell {self._scope} {self.foretold[stream]}`",
            )
        name = self.measured.get(stream, stream)
        study = self._config.study(self._scope, name)
        protocol, models = study.protocol, {}
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
            curves=self.curves,
        )

    def sweeps(self, stream: str) -> tuple[Sweep, ...]:
        """Return the sweeps of a stream that is measured."""
        name = self.measured.get(stream, stream)
        study = self._config.study(self._scope, name)
        if isinstance(study, ModelStudy) and stream != name:
            return self._apart(study)
        return self._config.sweeps(name)

    def foretell(self, stream: str) -> ForetellPlan:
        """Return the plan of a stream of predictions; ConfigError if it is none."""
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
        """Return the lock that a study runs in: an engine's, where one runs a model's experts."""
        own = self._config.environments[study.backend]
        if not isinstance(study, ModelStudy) or study.moe is None:
            return own
        engine = self._config.environments[study.moe]
        return own if engine == _TORCH else engine
