"""An earlier ledger's takes and config, restored as a project of their own."""

from collections import deque
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from nearfree.config.files import Config
from nearfree.config.yaml_file import load
from nearfree.decoders.config_file import find_file
from nearfree.errors import ConfigError, DamageError
from nearfree.log.document import replace
from nearfree.log.events import ObservationRetracted
from nearfree.log.evidence import RETRACTED, read_take
from nearfree.log.line import REMEDY, sha256
from nearfree.log.names import Layout, TakeName, parse_take
from nearfree.log.reader import read_bytes
from nearfree.log.seal import iter_sealed, read_seal
from nearfree.pipeline.pipeline import Pipeline
from nearfree.prove.audit.ledgers import NamedLedger, check_names
from nearfree.prove.audit.rebuild import scratch_root


class RestoredPipeline(Pipeline):
    """The pipeline of what a log holds: a requested scope without takes has no tables."""

    @cached_property
    def platforms(self) -> list[str]:
        """Platforms that hold a sealed take."""
        return [scope for scope in super().platforms if scope in self._sealed]

    @cached_property
    def sources(self) -> list[str]:
        """The scope of rules, if a release is on record."""
        return [scope for scope in super().sources if scope in self._sealed]

    @property
    def imported(self) -> list[str]:
        """The scope of imported curves, if they are configured and on record."""
        return [scope for scope in super().imported if scope in self._sealed]


def restore(log: Layout, named: NamedLedger, into: Path) -> RestoredPipeline:
    """Write a ledger's config and link its takes below a folder, and return the pipeline of both.

    The folder must be empty. It then holds `config` and `results` like a project; nothing is
    derived yet.

    Raises
    ------
    DamageError
        A take is gone or differs from the ledger's list, or a config file has an invalid name.
    ConfigError
        The config does not fit this code, or names a model that the ledger does not hold.
    """
    takes = list(_believed(log, named))
    check_names(named.ledger)
    folder = into / "config"
    for name, text in named.ledger.config.items():
        replace(folder / name, text.encode())
    try:
        strangers = [model for model in _models(folder) if not _own(folder, model)]
        if not strangers:
            return RestoredPipeline(scratch_root(log, into / "results", takes).root, folder)
    except ConfigError as error:
        raise ConfigError(
            f"the config of ledger {named.name} does not fit this code: "
            f"{error.what.replace(f'{folder}/', '')}",
            remedy=f"Use the code that wrote it: {named.ledger.code_digest!a:.40}",
        ) from error
    raise ConfigError(
        f"ledger {named.name} does not hold the model file {strangers[0]!r:.80} of its config",
        remedy="Keep such files under config/models, where ledgers record them",
    )


def _believed(log: Layout, named: NamedLedger) -> Iterator[TakeName]:
    """Yield the takes of a ledger, each verified byte by byte."""
    takes = {parse_take(name): digest for name, digest in named.ledger.seals.items()}
    for take, digest in takes.items():
        path = log.seal(take)
        if not path.exists() or sha256(read_bytes(path)) != digest:
            state = "is not the one" if path.exists() else "is gone"
            raise DamageError(f"{take} {state} that ledger {named.name} lists", remedy=REMEDY)
    retracted = {
        event.data.target
        for take in takes
        if take.stream == RETRACTED
        for event in read_take(log, take).of(ObservationRetracted)
    }
    for take in takes:
        seal = read_seal(log, take)
        if str(take) not in retracted:  # what was retracted may be damaged: nobody reads it
            deque(iter_sealed(log, seal, ()), maxlen=0)
        yield take


def _models(folder: Path) -> Iterator[str]:
    """Yield the models that a config names."""
    for deployment in Config(folder).deployments.values():
        yield from deployment.models
    if (folder / "studies.yaml").exists():
        studies = load(folder / "studies.yaml")
        for study in studies.values() if isinstance(studies, dict) else ():
            if isinstance(study, dict) and isinstance(study.get("model"), str):
                yield study["model"]


def _own(folder: Path, model: str) -> bool:
    return find_file(folder, model).parent == folder / "models"
