"""Restore an earlier ledger as a project, and its results under `results/as_of/`."""

from collections import deque
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from nearfree.config.files import Config
from nearfree.config.yaml_file import load
from nearfree.core.modules.engine import ENGINE
from nearfree.decoders.config_file import find_file
from nearfree.errors import ConfigError, DamageError, EvidenceError, WriteError
from nearfree.log.document import new_folder, replace
from nearfree.log.evidence import retractions
from nearfree.log.ledger import retired_seals
from nearfree.log.line import REMEDY, sha256
from nearfree.log.names import Layout, TakeName, parse_take
from nearfree.log.reader import read_bytes
from nearfree.log.seal import iter_sealed, read_seal
from nearfree.pipeline.pipeline import Pipeline
from nearfree.prove.audit.ledgers import NamedLedger, differences, restored_config
from nearfree.prove.audit.recompute import make_all, scratch_root

FOLDER = "as_of"
"""The folder of a results root that holds recomputed results."""
NOTE = "other_code.txt"
"""The file beside the results that warns of other code, if other code made them."""


class RestoredPipeline(Pipeline):
    """The pipeline of a restored log: a requested scope without takes has no tables."""

    @cached_property
    def platforms(self) -> list[str]:
        """The platforms with a sealed take."""
        return [scope for scope in super().platforms if scope in self._sealed]

    @cached_property
    def sources(self) -> list[str]:
        """The scope of source rules, if the log has a release."""
        return [scope for scope in super().sources if scope in self._sealed]

    @property
    def imported(self) -> list[str]:
        """The scope of imported curves, if the config has an import and the log a take of it."""
        return [scope for scope in super().imported if scope in self._sealed]


def restore(log: Layout, named: NamedLedger, into: Path) -> RestoredPipeline:
    """Write a ledger's config and link its takes below a folder; return the pipeline of both.

    The folder must be empty. It then holds `config` and `results` like a project, without derived
    files.

    Raises
    ------
    EvidenceError
        A take was retired since.
    DamageError
        A take is missing or differs from the ledger's list, or a config file has an invalid name.
    ConfigError
        The config does not fit this code, or names a model that the ledger does not hold.
    """
    takes = list(_verified_takes(log, named))
    folder = into / "config"
    with restored_config(named.ledger, named.name, folder) as config:
        models_folder = folder / "models"
        missing = [
            model for model in _models(config) if find_file(folder, model).parent != models_folder
        ]
        if not missing:
            return RestoredPipeline(scratch_root(log, into / "results", takes).root, folder)
    raise ConfigError(
        f"ledger {named.name} does not hold the model file {missing[0]!r:.80} of its config",
        remedy="Keep such files under config/models, where ledgers record them",
    )


def _verified_takes(log: Layout, named: NamedLedger) -> Iterator[TakeName]:
    """Yield the takes of a ledger, each verified byte by byte."""
    takes = {parse_take(name): digest for name, digest in named.ledger.seals.items()}
    for take, digest in takes.items():
        path = log.seal(take)
        if not path.exists() or sha256(read_bytes(path)) != digest:
            if retired_seals(log).get(str(take)) == digest:
                raise EvidenceError(
                    f"{take} of ledger {named.name} was retired: this log no longer holds it",
                    remedy="Use a checkout of the repository from before the take was retired",
                )
            state = "is not the one" if path.exists() else "is gone"
            raise DamageError(f"{take} {state} that ledger {named.name} lists", remedy=REMEDY)
    retracted = retractions(log, takes)
    for take in takes:
        seal = read_seal(log, take)
        if str(take) not in retracted:  # a retracted take may be damaged: nothing reads it
            deque(iter_sealed(log, seal, ()), maxlen=0)
        yield take


def _models(config: Config) -> Iterator[str]:
    """Yield the models that a config names; for engines' studies those of random weights."""
    for deployment in config.deployments.values():
        yield from deployment.models
    studies = load(config.folder / "studies.yaml")
    for study in studies.values() if isinstance(studies, dict) else ():
        is_config_model = isinstance(study, dict) and study.get("module") != ENGINE.name
        if is_config_model and isinstance(study.get("model"), str):
            yield study["model"]
    yield from (spec.random.config for spec in config.weights.values() if spec.random)


def as_of(
    log: Layout, named: NamedLedger, *, other_code: bool = False
) -> tuple[RestoredPipeline, str]:
    """Recompute the tables, figures and report of a ledger, and return their pipeline.

    Also return a warning to show with the results, if code or libraries differ. Earlier results
    stay until all new ones are complete.

    Parameters
    ----------
    other_code
        Continue although code or libraries differ from the ledger's, so that numbers may differ.

    Raises
    ------
    ConfigError
        Code or libraries differ and `other_code` is false, or the config does not fit this code.
    WriteError
        The folder is a link, whose target is not replaced.
    """
    from nearfree.show.page.stage import report_of

    mismatch = differences(named.ledger)
    if mismatch and not other_code:
        raise ConfigError(
            f"ledger {named.name} was written by other code or libraries: {mismatch}",
            remedy="Install that code and those libraries, or give --other-code",
        )
    into = log.root / FOLDER / named.folder
    for path in (into.parent, into):
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            raise WriteError(f"{path} is a link or no folder", remedy="Move it away")
    note = ""
    with new_folder(into) as folder:
        pipeline = restore(log, named, folder)
        if mismatch:
            note = (
                f"These are the takes and the config of ledger {named.name}, "
                f"made by other code or libraries, so numbers may differ from those of that time: "
                f"{mismatch}."
            )
            replace(folder / NOTE, f"{note}\n".encode())
        make_all(pipeline, figures=True)
        report_of(pipeline)
    return RestoredPipeline(into / "results", into / "config"), note
