"""The engine and the weights that are fetched for tests: those of the default study."""

from pathlib import Path

from nearfree.config.files import Config
from nearfree.core.modules.engine import EngineStudy
from nearfree.measure.engine_files import ensure_files

CONFIG = Path(__file__).parents[2] / "config"
STUDY = "llama_cpp_smollm2"
RELEASE = "3.22.1"
WEIGHTS = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def fetched() -> None:
    """Make sure that library and weights are here, out of the cache or from the network."""
    config = Config(CONFIG)
    study = config.studies[STUDY]
    assert isinstance(study, EngineStudy)
    for _ in ensure_files(config, study):
        pass
