"""The collectives of a decoder's forward over several GPUs, each as a module.

They are those of vLLM 0.33.0 and SGLang 0.5.23, whose sources are cited at each. Only rows are
counted. Other gathered or reduced values are left out: router weights, token ids and counts, and
the sums of squares of norms over all heads (queries and keys of MiniMax M2, and the output of a
Mamba-2 mixer of one group: vLLM layers/mamba/mamba_mixer2.py, Mixer2RMSNormGated).
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from nearfree.backends.names import BackendRelease, is_since
from nearfree.core.modules.collective import WITH_NORM
from nearfree.core.parallel import Parallel
from nearfree.core.precision import Dtype
from nearfree.core.setting import Setting
from nearfree.core.setting_check import check_setting
from nearfree.decoders.decoder import Decoder
from nearfree.decoders.ranks.engines import ENGINES, VLLM
from nearfree.decoders.ranks.modules import ModuleUse
from nearfree.decoders.ranks.nodes import nodes_of
from nearfree.errors import ConfigError

ATTENTION_SUM, FFN_SUM, MOE_SUM = "attention all-reduce", "FFN all-reduce", "MoE all-reduce"
EMBEDDING_SUM, LOGITS = "embedding all-reduce", "logits gather"
QUERIES, KEYS = "query gather", "key gather"
DISPATCH, COMBINE, REGATHER = "expert dispatch", "expert combine", "rows gather"
STAGE, STAGE_GATHER = "stage send", "stage gather"
BRANCH_SUM, STATES = "LAuReL all-reduce", "AltUp gather"
LAYER_INPUTS = "layer inputs gather"
FAR_STAGE = "stage send between nodes"
"""The collectives of a forward."""
ROLES = (
    ATTENTION_SUM, FFN_SUM, MOE_SUM, EMBEDDING_SUM, LOGITS, QUERIES, KEYS, DISPATCH, COMBINE,
    REGATHER, STAGE, FAR_STAGE, STAGE_GATHER, BRANCH_SUM, STATES, LAYER_INPUTS,
)  # fmt: skip
Use = Callable[..., ModuleUse]
"""Makes the module of a collective from its role, its count per forward and a setting's fields."""
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
    batch
        Requests b of one dp group: with `dp` groups the forward has dp times as many.
    sent
        The dtype in which rows are sent to experts; the decoder's own dtype if None. Scales of rows
        are left out.
    node_gpus
        GPUs per node; None if all are on one node.

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
    nccl, engine_use = partial(use, backend=_NCCL), partial(use, backend=engine)
    tp, d_model = parallel.tp, decoder.d_model
    nodes, crossings, fewest = nodes_of(parallel, ENGINES[engine.name], node_gpus)
    uses: list[ModuleUse] = []
    if tp > 1:
        all_reduce = partial(engine_use, operation="all_reduce", gpus=tp, d_model=d_model)
        # vLLM model_executor/layers/vocab_parallel_embedding.py 562: a vocabulary cut over ranks.
        uses.append(all_reduce(EMBEDDING_SUM, 1))
        fuses = ENGINES[engine.name].fuses_norms(engine.version, parallel, decoder.model_type)
        all_reduce = partial(all_reduce, api=WITH_NORM if fuses else None)
        # vLLM model_executor/layers/linear.py 1818, RowParallelLinear of o_proj and of down_proj.
        attention_layers = sum(len(kind.layers) for kind in decoder.attention)
        if decoder.model_type in ENGINES[engine.name].gathers:
            all_gather = partial(nccl, operation="all_gather", gpus=tp)
            uses.append(
                all_gather(QUERIES, attention_layers, d_model=decoder.heads * decoder.head_dim)
            )
            uses.append(
                all_gather(KEYS, attention_layers, d_model=decoder.kv_heads * decoder.head_dim)
            )
        attention_sums = attention_layers - _joint_sum_layers(decoder, parallel, engine)
        if attention_sums:
            uses.append(all_reduce(ATTENTION_SUM, attention_sums))
        if decoder.dense_layers:
            uses.append(all_reduce(FFN_SUM, decoder.dense_layers))
        if decoder.altup:
            # vLLM model_executor/models/gemma3n.py 201 and 633-670: the branch ends in a
            # RowParallelLinear; per-layer inputs and each projection of a state are gathered.
            uses.append(all_reduce(BRANCH_SUM, decoder.layers))
            gather = partial(nccl, operation="all_gather", gpus=tp)
            uses.append(gather(STATES, 2 * (decoder.altup.states - 1), d_model=d_model))
            width = decoder.layers * (decoder.layer_inputs or 0)
            uses.append(gather(LAYER_INPUTS, 1, d_model=width))
    if decoder.experts and parallel.ranks > 1:
        across_groups = engine.name == VLLM.name and not VLLM.uses_sequence_parallel(
            parallel, decoder.model_type
        )
        if parallel.dp > 1:
            gpus = parallel.dp if across_groups else parallel.ranks
            fewest = fewest and max(1, fewest // (tp if across_groups else 1))
            exchange = partial(
                nccl, batch=batch * parallel.dp, groups=1, nodes=min(nodes, gpus), fewest=fewest
            )
            uses += _expert_exchange(decoder, gpus, exchange, sent or decoder.dtype)
        if parallel.dp > 1 and tp > 1 and not across_groups:
            regather = partial(nccl, operation="all_gather", gpus=tp, d_model=d_model)
            uses.append(regather(REGATHER, decoder.moe_layers))
        elif tp > 1:
            # vLLM model_executor/layers/fused_moe/runner/moe_runner.py 515: each rank has the
            # partial output of its experts, or its shards of them, for all rows of its group.
            uses.append(all_reduce(MOE_SUM, decoder.moe_layers))
    if tp > 1:
        # vLLM model_executor/layers/logits_processor.py 130; SGLang layers/logits_processor.py.
        width = decoder.vocabulary
        uses.append(nccl(LOGITS, 1, operation="all_gather", gpus=tp, d_model=width))
    if parallel.pp > 1:
        uses += _stages(decoder, parallel, nccl, crossings)
    return tuple(uses)


def _joint_sum_layers(decoder: Decoder, parallel: Parallel, engine: BackendRelease) -> int:
    """Return the number of layers that all-reduce attention's and the FFN's outputs as one sum."""
    rules = ENGINES[engine.name]
    first_release, experts = dict(rules.joint_sums).get(decoder.model_type), decoder.experts
    if first_release is None or not is_since(engine.version, first_release):
        return 0
    moe_separate = parallel.dp > 1 or (
        experts and experts.shared_d_ff and not rules.joint_sums_with_shared
    )
    return decoder.dense_layers + (0 if moe_separate else decoder.moe_layers)


def _expert_exchange(
    decoder: Decoder, gpus: int, exchange: Use, sent: Dtype
) -> Iterator[ModuleUse]:
    """Yield the all-gather of rows to experts and the reduce-scatter of their outputs.

    With sequence parallelism each rank sends its part of the group's rows and gathers the others
    afterwards. Without it each rank has all rows of its group: the ranks with the same index in all
    groups exchange them, and an all-reduce over the group follows (vLLM config/parallel.py 768,
    use_sequence_parallel_moe; distributed/device_communicators/all2all.py, AgRsAll2AllManager).
    """
    layers, sizes = decoder.moe_layers, {"gpus": gpus, "d_model": _expert_row_width(decoder)}
    yield exchange(DISPATCH, layers, operation="all_gather", dtype=sent, **sizes)
    yield exchange(COMBINE, layers, operation="reduce_scatter", **sizes)


def _expert_row_width(decoder: Decoder) -> int:
    """Return the width of rows sent to routed experts: of the latent, which is made before sending.

    Their outputs are summed over ranks after the product out of the latent, which is never
    quantised (vLLM model_executor/layers/fused_moe/runner/moe_runner.py 719 and
    model_executor/models/nemotron_h.py 213).
    """
    return (decoder.experts and decoder.experts.latent) or decoder.d_model


def _stages(decoder: Decoder, parallel: Parallel, nccl: Use, crossings: int) -> Iterator[ModuleUse]:
    """Yield the transfers from each pipeline stage to the next: hidden states and the residual.

    Each of the tp ranks sends its part of both; the receivers all-gather the parts (vLLM
    model_executor/models/llama.py 444; distributed/parallel_state.py 1083, send_tensor_dict with
    an all_gather_group). Of the hops between stages, `crossings` leave a node.
    """
    width, hops = 2 * decoder.d_model, parallel.pp - 1
    part = -(-width // parallel.tp)
    send = partial(nccl, operation="send", gpus=2, d_model=part)
    if crossings < hops:
        yield send(STAGE, hops - crossings, nodes=1)
    if crossings:
        yield send(FAR_STAGE, crossings, nodes=2)
    if parallel.tp > 1:
        yield nccl(STAGE_GATHER, hops, operation="all_gather", gpus=parallel.tp, d_model=width)


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
