"""The CUDA graphs that a deployment's steps run in: of the named engine, or of its experts'."""

from nearfree.backends.names import BackendRelease, backend
from nearfree.backends.records import BY_NAME
from nearfree.config.files import Config, DeploymentSpec
from nearfree.core.parallel import Parallel
from nearfree.decoders.ranks.engines import ENGINES, VLLM
from nearfree.derive.granularity.graphs import Graphs
from nearfree.derive.predict.forecast.on_record import versions_of
from nearfree.errors import ConfigError, EvidenceError
from nearfree.sources.backends.vllm_graphs import LATENT
from nearfree.sources.mla_paths import VLLM_MLA, engine_paths, path_at
from nearfree.sources.packages import RULES

NONE, ENGINE = "none", "engine"
_ENGINES_WITH_GRAPHS = tuple(name for name in ENGINES if f"{name}-graphs" in RULES)
"""Engines whose graphs are read. TensorRT-LLM has graphs, too; a caveat says so."""


def graphs_of(
    config: Config,
    spec: DeploymentSpec,
    platform: str,
    parallel: Parallel,
    *,
    attention: BackendRelease,
    moe: BackendRelease | None,
) -> Graphs | None:
    """Return the graphs that steps are padded to, None without graphs.

    Parameters
    ----------
    attention, moe
        The backends of attention and of the experts; `moe` is None without experts.

    Raises
    ------
    ConfigError
        A named release is not of an engine, or the platform has no CUDA graphs or no known memory.
    """
    sheet = config.platforms[platform]
    if spec.graphs == NONE:
        return None
    has_graphs = sheet.sm is not None and sheet.memory_gb is not None
    if spec.graphs == ENGINE:
        release = _release_on_record(config, _engine(spec, attention, moe)) if has_graphs else None
    else:
        release = _named(config, spec.graphs)
        if not has_graphs:
            raise ConfigError(
                f"{platform} has no CUDA graphs, or no known memory, by which their sizes go",
                remedy="Leave out --graphs, or choose another platform",
            )
    if release is None:
        return None
    return Graphs(
        engine=release,
        sm=sheet.sm or 0,
        memory_gib=round(sheet.memory_gb or 0),
        device_name=sheet.device_name or "",
        tp=parallel.tp,
        groups=parallel.dp,
        attention=_attention(attention, sheet.sm or 0) if release.name == VLLM.name else None,
    )


def _attention(attention: BackendRelease, sm: int) -> str | None:
    """Return vLLM's attention backend by the name of its file, None where it is not known."""
    if attention.name != VLLM_MLA:
        return BY_NAME[attention.name].vllm_file
    try:
        path = path_at(engine_paths(VLLM_MLA, attention.version, sm), 1)
    except EvidenceError:
        return None
    return LATENT.get(path.kernel) if path else None


def _engine(
    spec: DeploymentSpec, attention: BackendRelease, moe: BackendRelease | None
) -> BackendRelease:
    """Return the engine of a deployment: of its experts, its attention, or the one it names."""
    if moe and moe.name in ENGINES:
        return moe
    attention_engine = BY_NAME[attention.name].engine
    if attention_engine is not None and attention_engine in ENGINES:
        return BackendRelease(attention_engine, attention.version)
    engines = [release for release in map(backend, spec.moe) if release.name in ENGINES]
    return engines[0] if engines else BackendRelease(VLLM.name)


def _release_on_record(config: Config, engine: BackendRelease) -> BackendRelease | None:
    """Return an engine's release as named, else the newest whose graphs are on record.

    Return None for an engine whose graphs are not read.
    """
    if engine.name not in _ENGINES_WITH_GRAPHS:
        return None
    if engine.version is not None:
        return engine
    versions = versions_of(config, f"{engine.name}-graphs")
    return BackendRelease(engine.name, versions[0]) if versions else None


def graphs_engine(text: str) -> BackendRelease:
    """Return the engine that `graphs` names; ConfigError if its graphs are not read."""
    try:
        engine = backend(text)
    except ConfigError:
        engine = None
    if engine is None or engine.name not in _ENGINES_WITH_GRAPHS:
        raise ConfigError(
            f"{text!r:.120} is no engine with CUDA graphs that are read",
            remedy=f"Name one of {', '.join(_ENGINES_WITH_GRAPHS)} as package==version, or none",
        )
    return engine


def _named(config: Config, text: str) -> BackendRelease:
    """Return the engine's release that `graphs` names; without a version the newest on record."""
    engine = graphs_engine(text)
    release = _release_on_record(config, engine)
    if release is None:
        raise ConfigError(
            f"no release whose CUDA graphs are read of {engine.name} is listed in "
            f"{config.folder}/sources.yaml",
            remedy=f"Name one: {engine.name}==VERSION",
        )
    return release
