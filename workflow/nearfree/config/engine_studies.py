"""Studies of real engines: the weights that engines run, and the sweeps."""

from itertools import product
from pathlib import Path
from typing import Annotated, Any, cast

import msgspec
from msgspec import Meta, Struct, structs

from nearfree.backends.builds import builds, engine_environment
from nearfree.core.modules.engine import EngineStudy
from nearfree.core.names import Name
from nearfree.core.plan import Sweep
from nearfree.core.setting import Release
from nearfree.core.weights import AnyWeights, Digest, FileType, RandomWeights, WeightsFile
from nearfree.decoders.config_file import find_file
from nearfree.errors import ConfigError
from nearfree.log.reader import UNREADABLE

Text = Annotated[str, Meta(min_length=1, max_length=200)]


class Member(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of a package's wheel."""

    package: Text
    version: Text
    path: Text
    sha256: Digest


class Random(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Random weights of a model of models/, and the release that creates and stores them."""

    config: Name
    release: Release


class WeightsSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """weights.yaml: either a GGUF file from a package, or random weights.

    `file_type` is GGUF's name of the stored format.
    """

    file_type: FileType
    member: Member | None = None
    random: Random | None = None

    def __post_init__(self) -> None:
        if (self.member is None) == (self.random is None):
            raise ValueError("it needs either a member of a package or a random config")

    def resolved(self, folder: Path) -> AnyWeights:
        """Return the weights as a plan carries them; ConfigError if the config cannot be read."""
        if self.member is not None:
            return WeightsFile(file_type=self.file_type, sha256=self.member.sha256)
        random = cast("Random", self.random)  # one of the two is set
        file = find_file(folder, random.config)
        try:
            config = msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
        except (OSError, *UNREADABLE) as error:
            raise ConfigError(
                f"{file} is no model's config: {error}", remedy="Give a config.json of models/"
            ) from error
        return RandomWeights(file_type=self.file_type, config=config, release=random.release)


def engine_sweeps(study: EngineStudy, weights: AnyWeights) -> tuple[Sweep, ...]:
    """Return one sweep per setting; ConfigError for an impossible release, axis or grid."""
    study.check_axes()
    engine_environment(study.backend, study.release)
    first = study.setting(weights.digest, weights.file_type)
    settings = (
        structs.replace(first, **dict(zip(study.axes, values, strict=True)))
        for values in product(*(getattr(study, axis) for axis in study.axes))
    )
    baseline = study.baseline or 1
    sweeps = tuple(
        Sweep(setting=setting, positions=study.grid(setting.batch), baseline=baseline)
        for setting in settings
    )
    if not builds(study.backend):
        _check_served(study, weights, len(sweeps))
    return sweeps


def _check_served(study: EngineStudy, weights: AnyWeights, settings: int) -> None:
    """Raise ConfigError for weights or settings that a serving engine cannot run here."""
    if not isinstance(weights, RandomWeights) or weights.release != study.release:
        raise ConfigError(
            f"{study.backend} {study.release} makes its own random weights, and {study.model} is a "
            "file, or made by another release",
            remedy=f"Name an entry of weights.yaml that is random, of release {study.release}",
        )
    if settings > 1:
        raise ConfigError(
            f"{settings} settings of {study.backend} in one study: a process holds one engine",
            remedy="Make a separate study for each batch, context and number of threads",
        )
