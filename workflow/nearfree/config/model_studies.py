"""The sweeps of a model's study: of the whole forward, and of its modules measured separately."""

from collections.abc import Iterator
from itertools import product

from msgspec import structs

from nearfree.backends.names import BackendRelease
from nearfree.backends.records import in_models
from nearfree.core.modules.attention import ATTENTION
from nearfree.core.modules.indexer import INDEXER
from nearfree.core.modules.mla import MLA
from nearfree.core.modules.model import ModelStudy
from nearfree.core.modules.routing import routing_baseline
from nearfree.core.plan import Sweep
from nearfree.core.precision import uniform
from nearfree.core.routing_names import Controlled
from nearfree.core.setting import Setting
from nearfree.decoders.attention_kinds import Grouped
from nearfree.decoders.model import Model
from nearfree.decoders.ranks.modules import ModuleUse, modules
from nearfree.errors import ConfigError


def model_sweeps(study: ModelStudy, model: Model) -> tuple[Sweep, ...]:
    """Return one sweep per setting: N = 1, and the grid from the setting's baseline on.

    Raises
    ------
    ConfigError
        The study does not fit the model, or has an axis or grid that cannot be swept.
    """
    study.check_axes()
    _check(study, model)
    sweeps = []
    for setting in _settings(study, model):
        baseline = study.baseline or routing_baseline(
            setting.routing, setting.experts, setting.top_k, setting.batch
        )
        larger = [n for n in study.grid(setting.batch) if n > baseline]
        if not larger:
            raise ConfigError(
                f"no N of the grid lies beyond the baseline {baseline} of b = {setting.batch}, "
                f"k = {setting.top_k}",
                remedy="Add larger N to `positions`, or allow more with `tokens_max`",
            )
        positions = tuple(sorted({1, baseline, *larger}))
        sweeps.append(Sweep(setting=setting, positions=positions, baseline=baseline))
    return tuple(sweeps)


def module_sweeps(study: ModelStudy, model: Model) -> tuple[Sweep, ...]:
    """Return the sweeps of the modules of the study's forwards, one per distinct module.

    A module that several forwards share has the union of their grids, from the smallest baseline
    on. A forward with the model's own routing is left out: no setting describes that routing.
    """
    grids: dict[Setting, set[int]] = {}
    baselines: dict[Setting, int] = {}
    for sweep in model_sweeps(study, model):
        for use in uses(sweep.setting, model):
            grids.setdefault(use.setting, set()).update(sweep.positions)
            baselines[use.setting] = min(baselines.get(use.setting, sweep.baseline), sweep.baseline)
    return tuple(
        Sweep(setting=setting, positions=tuple(sorted(grid)), baseline=baselines[setting])
        for setting, grid in grids.items()
    )


def uses(setting: Setting, model: Model, spread: Controlled | None = None) -> tuple[ModuleUse, ...]:
    """Return the modules of a model's forward, each with its count per forward.

    Attention has the mask of the model and an unpaged KV cache, as in the forward. No setting
    describes the routing of the model's own router: for it the result is empty, unless `spread`
    gives a routing in its place.
    """
    routing = spread if setting.routing == "router" else setting.routing
    if setting.experts and routing is None:
        return ()
    modules_used = modules(
        model.with_top_k(setting.top_k).decoder,
        batch=setting.batch,
        context=setting.context or 0,
        attention=BackendRelease(setting.backend),
        moe=BackendRelease(setting.moe) if setting.moe else None,
        routing=routing,
        precision=uniform(setting.dtype),
    )
    # Attention calls have the model's mask and dtype, indexers its dtype, too.
    mask = None if setting.mask == "causal" else setting.mask
    changed = {"mask": mask, "page_size": None, "dtype": setting.dtype}
    return tuple(
        structs.replace(use, setting=structs.replace(use.setting, **changed))
        if use.setting.module in (ATTENTION.name, MLA.name, INDEXER.name)
        else use
        for use in modules_used
    )


def _settings(study: ModelStudy, model: Model) -> Iterator[Setting]:
    decoder, experts = model.decoder, model.decoder.experts
    axes = product(
        study.routing if experts and study.routing else (None,),
        study.batch,
        (study.top_k or (experts.top_k,)) if experts else (None,),
        study.context,
    )
    for routing, batch, top_k, context in axes:
        yield Setting(
            module="model",
            backend=study.backend,
            dtype=study.dtype,
            batch=batch,
            context=context,
            d_model=decoder.d_model,
            d_ff=decoder.d_ff,
            experts=experts.experts if experts else None,
            top_k=top_k,
            routing=routing,
            heads=decoder.heads,
            kv_heads=decoder.kv_heads,
            head_dim=decoder.head_dim,
            mask=study.mask,
            model=study.model,
            model_digest=model.digest,
            moe=study.moe,
        )


def _check(study: ModelStudy, model: Model) -> None:
    """Raise ConfigError if the study does not fit the model."""
    experts = model.decoder.experts
    attention = in_models(ATTENTION.name)
    if study.backend not in attention:
        raise ConfigError(
            f"{study.backend} runs no model's attention",
            remedy=f"Choose {', '.join(attention)} as `backend`",
        )
    moe = in_models("moe_ffn")
    if study.moe is not None and study.moe not in moe:
        raise ConfigError(
            f"{study.moe} runs no experts", remedy=f"Choose {', '.join(sorted(moe))} as `moe`"
        )
    kinds = (kind for kind in model.decoder.attention if isinstance(kind, Grouped) and kind.most)
    windowed = next(kinds, None)
    if study.mask == "block" and windowed:
        raise ConfigError(
            f"{study.model} has layers with {windowed.words} positions, with which the block mask "
            "is not run",
            remedy="Choose the mask causal",
        )
    given = [name for name in ("moe", "routing", "top_k") if getattr(study, name) is not None]
    if experts is None and given:
        raise ConfigError(
            f"{given[0]} is given, and {study.model} has no experts", remedy=f"Leave {given[0]} out"
        )
    if experts is None:
        return
    missing = [name for name in ("moe", "routing") if getattr(study, name) is None]
    if missing:
        raise ConfigError(
            f"{missing[0]} is missing, and {study.model} has {experts.experts} experts",
            remedy="Give their backend as `moe`, and the distribution of tokens as `routing`",
        )
    for top_k in study.top_k or ():
        model.with_top_k(top_k)
        if "router" in (study.routing or ()) and top_k > model.choice:
            raise ConfigError(
                f"top_k {top_k}: the router of {study.model} chooses among {model.choice} experts",
                remedy=f"Choose {model.choice} at most, or controlled routing",
            )
