"""The collectives of a decoder's forward over several GPUs, each as a module.

They stand where vLLM 0.33.0 and SGLang 0.5.23 have them, whose sources are cited at each. What is
gathered or reduced beside the rows themselves is left out: router weights, token ids and counts,
and the squares that a norm over all heads sums up (queries and keys of MiniMax M2, and what leaves
a Mamba-2 mixer of one group: vLLM layers/mamba/mamba_mixer2.py, Mixer2RMSNormGated).
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from packaging.version import Version

from nearfree.backends.names import BackendRelease
from nearfree.core.parallel import Parallel
from nearfree.core.precision import Dtype
from nearfree.core.setting import Setting
from nearfree.core.setting_check import check_setting
from nearfree.decoders.decoder import Decoder
from nearfree.decoders.engines import ENGINES, VLLM
from nearfree.decoders.modules import ModuleUse
from nearfree.decoders.nodes import nodes_of
from nearfree.errors import ConfigError

ATTENTION_SUM, FFN_SUM, MOE_SUM = "attention all-reduce", "FFN all-reduce", "MoE all-reduce"
EMBEDDING_SUM, LOGITS = "embedding all-reduce", "logits gather"
QUERIES, KEYS = "query gather", "key gather"
DISPATCH, COMBINE, REGATHER = "expert dispatch", "expert combine", "rows gather"
STAGE, STAGE_GATHER = "stage send", "stage gather"
FAR_STAGE = "stage send between nodes"
"""The collectives of a forward."""
ROLES = (
    ATTENTION_SUM, FFN_SUM, MOE_SUM, EMBEDDING_SUM, LOGITS, QUERIES, KEYS, DISPATCH, COMBINE,
    REGATHER, STAGE, FAR_STAGE, STAGE_GATHER,
)  # fmt: skip
Use = Callable[..., ModuleUse]
"""Makes a collective of a role, how often it runs, and a setting's fields."""
_NCCL = BackendRelease("nccl")


def collectives(
    decoder: Decoder,
    parallel: Parallel,
    *,
    batch: int,
    engine: BackendRelease,
    sent: Dtype | None = None,
    node_gpus: int | None = None,
) -> tuple[ModuleUse, ...]:
    """Return the collectives of a decoder's forward, in the order in which they first run.

    Parameters
    ----------
    decoder
        The model.
    parallel
        Over how many GPUs it is spread; on one there is no collective.
    batch
        Requests b of one group of attention: with `dp` groups the forward has dp times as many.
    engine
        What serves the model, and its release: whose all-reduce runs.
    sent
        In what numbers rows are sent to experts; the decoder's own dtype if None. Scales of rows
        are left out.
    node_gpus
        The GPUs of a node; None where all lie on one.

    Raises
    ------
    ConfigError
        No collectives of the engine are known.
    """
    if engine.name not in ENGINES:
        raise ConfigError(
            f"{engine.name} runs no collective that is known here",
            remedy=f"Name the engine that serves the model: {', '.join(ENGINES)}",
        )
    use = partial(_use, dtype=decoder.dtype, batch=batch, groups=parallel.dp)
    nccl, own = partial(use, backend=_NCCL), partial(use, backend=engine)
    tp, d_model = parallel.tp, decoder.d_model
    nodes, crossings, fewest = nodes_of(parallel, ENGINES[engine.name], node_gpus)
    found: list[ModuleUse] = []
    if tp > 1:
        summed = partial(own, operation="all_reduce", gpus=tp, d_model=d_model)
        # vLLM model_executor/layers/vocab_parallel_embedding.py 562: a vocabulary cut over ranks.
        found.append(summed(EMBEDDING_SUM, 1))
        # vLLM model_executor/layers/linear.py 1818, RowParallelLinear of o_proj and of down_proj.
        attends = sum(len(kind.layers) for kind in decoder.attention)
        if decoder.model_type in ENGINES[engine.name].gathers:
            every = partial(nccl, operation="all_gather", gpus=tp)
            found.append(every(QUERIES, attends, d_model=decoder.heads * decoder.head_dim))
            found.append(every(KEYS, attends, d_model=decoder.kv_heads * decoder.head_dim))
        apart_sums = attends - _joined(decoder, parallel, engine)
        if apart_sums:
            found.append(summed(ATTENTION_SUM, apart_sums))
        if decoder.dense_layers:
            found.append(summed(FFN_SUM, decoder.dense_layers))
    if decoder.experts and parallel.ranks > 1:
        apart = engine.name == VLLM.name and not VLLM.parts_rows(parallel, decoder.model_type)
        if parallel.dp > 1:
            gpus = parallel.dp if apart else parallel.ranks
            fewest = fewest and max(1, fewest // (tp if apart else 1))
            whole = partial(
                nccl, batch=batch * parallel.dp, groups=1, nodes=min(nodes, gpus), fewest=fewest
            )
            found += _gathered(decoder, gpus, whole, sent or decoder.dtype)
        if parallel.dp > 1 and tp > 1 and not apart:
            gathered = partial(nccl, operation="all_gather", gpus=tp, d_model=d_model)
            found.append(gathered(REGATHER, decoder.moe_layers))
        elif tp > 1:
            # vLLM model_executor/layers/fused_moe/runner/moe_runner.py 515: each rank has what its
            # experts, or its parts of them, add to the rows that all of its group have.
            found.append(summed(MOE_SUM, decoder.moe_layers))
    if tp > 1:
        # vLLM model_executor/layers/logits_processor.py 130; SGLang layers/logits_processor.py.
        width = decoder.vocabulary
        found.append(nccl(LOGITS, 1, operation="all_gather", gpus=tp, d_model=width))
    if parallel.pp > 1:
        found += _stages(decoder, parallel, nccl, crossings)
    return tuple(found)


def _joined(decoder: Decoder, parallel: Parallel, engine: BackendRelease) -> int:
    """Return of how many layers one sum holds what attention and what the FFN give."""
    rules = ENGINES[engine.name]
    first, experts = dict(rules.joins).get(decoder.model_type), decoder.experts
    if first is None or (engine.version and Version(engine.version) < Version(first)):
        return 0
    unjoined = parallel.dp > 1 or (experts and experts.shared_d_ff and not rules.joins_shared)
    return decoder.dense_layers + (0 if unjoined else decoder.moe_layers)


def _gathered(decoder: Decoder, gpus: int, whole: Use, sent: Dtype) -> Iterator[ModuleUse]:
    """Yield what brings all rows to all ranks, and back summed up.

    Where each rank of a group makes its part of the group's rows ready, it brings that, and gathers
    the others' afterwards; where each makes all of them, the ranks of one place in all groups
    exchange them, and a sum over the group follows (vLLM config/parallel.py 768,
    use_sequence_parallel_moe; distributed/device_communicators/all2all.py, AgRsAll2AllManager).
    """
    layers, sizes = decoder.moe_layers, {"gpus": gpus, "d_model": _routed(decoder)}
    yield whole(DISPATCH, layers, operation="all_gather", dtype=sent, **sizes)
    yield whole(COMBINE, layers, operation="reduce_scatter", **sizes)


def _routed(decoder: Decoder) -> int:
    """Return how wide the rows of routed experts are: a latent's is made before they are sent.

    What they give is summed over ranks behind the product out of the latent, which is never
    quantised (vLLM model_executor/layers/fused_moe/runner/moe_runner.py 719 and
    model_executor/models/nemotron_h.py 213).
    """
    return (decoder.experts and decoder.experts.latent) or decoder.d_model


def _stages(decoder: Decoder, parallel: Parallel, nccl: Use, crossings: int) -> Iterator[ModuleUse]:
    """Yield what goes from each pipeline stage to the next: hidden states and the residual.

    Each of the tp ranks sends its part of both, and gathers them behind (vLLM
    model_executor/models/llama.py 444; distributed/parallel_state.py 1083, send_tensor_dict with
    an all_gather_group). Of the hops between stages so many leave a node.
    """
    both, times = 2 * decoder.d_model, parallel.pp - 1
    part = -(-both // parallel.tp)
    send = partial(nccl, operation="send", gpus=2, d_model=part)
    if crossings < times:
        yield send(STAGE, times - crossings, nodes=1)
    if crossings:
        yield send(FAR_STAGE, crossings, nodes=2)
    if parallel.tp > 1:
        yield nccl(STAGE_GATHER, times, operation="all_gather", gpus=parallel.tp, d_model=both)


def _use(
    role: str,
    count: int,
    *,
    backend: BackendRelease,
    groups: int,
    nodes: int | None = None,
    fewest: int | None = None,
    **fields: Any,
) -> ModuleUse:
    setting = Setting(module="collective", backend=backend.name, **fields)
    check_setting(setting)
    version = backend.version
    return ModuleUse(
        role=role,
        count=count,
        setting=setting,
        backend_version=version,
        groups=groups,
        nodes=nodes,
        fewest=fewest,
    )
