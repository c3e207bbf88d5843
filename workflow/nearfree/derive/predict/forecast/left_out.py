"""Caveats of an answer about a deployment: omissions, and substitutes for unknown kernels."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from nearfree.backends.attention_order import STAND_INS
from nearfree.backends.decode_kernels import BY_FLASHINFER, DECODERS
from nearfree.backends.names import is_since
from nearfree.backends.public_kernels import BY_PUBLIC_NAME, TWINS
from nearfree.decoders.ranks.caveats import caveats
from nearfree.decoders.ranks.engines import ENGINES, TRTLLM
from nearfree.decoders.ranks.modules import layer_format, layer_weights
from nearfree.decoders.ranks.nodes import ON_ONE, nodes_of

if TYPE_CHECKING:
    from nearfree.derive.predict.forecast.deployment import Deployment

_DIRECT = (
    "where they reach each other's memory; through the host many rows take about twice as long "
    "among 2, and up to ten times among 8"
)
_THROUGH_HOST = (
    "where they share one path through the host, as in most public tables of L40S (4 to 5 GB/s a "
    "GPU among 4, 1.4 to 2 among 8); where they reach each other T(N) of many rows is shorter"
)
"""Bandwidth of all-reduces of 16 MiB by a ring over PCIe: AIConfigurator 0.12.0,
custom_allreduce_perf and nccl_perf of l40s, where one table, that of SGLang 0.5.12, has 20 GB/s,
and of rtx_pro_6000_server, with 23 to 28 GB/s among 4 and 8. Between two GPUs tables have 16 to 20
and 35 GB/s, but three of RTX PRO 6000 have 15."""

_OTHER_GRAPHS = (
    "runs decode steps in CUDA graphs of its cuda_graph_config, by default of exactly 1 to 32, 64 "
    "and 128 requests: by T(N) a step is neither padded to one nor outside of all"
)
"""Source: NVIDIA/TensorRT-LLM at 0004396, tensorrt_llm/llmapi/llm_args.py, BaseCudaGraphConfig:
padding is off by default, and graphs are made without `cuda_graph_config`, too."""


def caveats_of(deployment: "Deployment") -> tuple[str, ...]:
    """Return the caveats of a deployment's T(N), as sentences."""
    parallel = deployment.parallel
    engine, attention = deployment.engine, deployment.attention
    notes = [
        *map(str, deployment.slower),
        *filter(None, (deployment.too_long, deployment.class_note)),
        *_between_gpus(deployment),
    ]
    if deployment.stand_in:
        notes.append(
            f"{deployment.moe} may run a kernel of FlashInfer's for these experts on this GPU: "
            "T(N) is of Triton's"
        )
    if deployment.served and engine.name == TRTLLM.name:
        notes.append(f"{engine.name} {_OTHER_GRAPHS}")
    if deployment.library in TWINS:
        backend, kernel = TWINS[deployment.library]
        notes.append(
            f"curves of {BY_PUBLIC_NAME[deployment.library]} for experts are those of {backend}'s "
            f"kernel of the same source, {kernel}"
        )
    if deployment.fused:
        notes.append(
            f"{engine.name} runs the shared expert as one more of the routed ones, which "
            f"every token takes, by the blocks of {deployment.fused} experts: timed are the "
            f"{deployment.fused - 1} by their own blocks, and the shared one beside them"
        )
    if ENGINES[engine.name].over_all and parallel.dp > 1:
        notes.append(
            f"{engine.name} gathers the rows of all groups before a Dense FFN, shared "
            "experts and the LM head, which it cuts over all ranks: that is not counted"
        )
    decoders = {kernel.kernel: kernel for kernel in DECODERS}
    decoder = decoders.get(deployment.decoder_kernel or "")
    if decoder is not None and not (decoder.own and attention.name == decoder.backend):
        notes.append(
            f"{decoder.engine} decodes by {decoder.kernel}: tiles of {attention} stand for its own"
        )
    if decoder is None and (engine.name, attention.name) in STAND_INS:
        notes.append(
            f"{engine.name} attends by kernels of its own: tiles of {attention} stand for them"
        )
    if deployment.other_kernel:
        notes.append(
            f"{engine} decodes {deployment.other_kernel}: tiles of {attention} stand for its own"
        )
    notes += [
        f"{engine} decodes this model by FlashInfer's kernel on this GPU, of which there "
        f"is no public curve: T(1) of attention is of {kernel.kernel}"
        for kernel in BY_FLASHINFER
        if kernel.kernel == deployment.decoder_kernel
        and deployment.decoder.model_type in kernel.models
        and (kernel.since is None or is_since(engine.version, kernel.since))
        and not (kernel.until and is_since(engine.version, kernel.until))
    ]
    of_layers = layer_weights(deployment.formats)
    if deployment.decoder.in_one and of_layers != layer_format(deployment.formats):
        notes.append(
            f"attention layers with weights in {of_layers} are timed as in "
            f"{layer_format(deployment.formats)}, of as many bits: no public curve is of theirs"
        )
    return (*notes, *caveats(deployment.decoder))


def _between_gpus(deployment: "Deployment") -> Iterator[str]:
    """Yield the caveats about what GPUs send each other."""
    platform, parallel, engine = deployment.platform, deployment.parallel, deployment.engine
    if deployment.assembled and parallel.gpus > 1:
        yield (
            f"{parallel.gpus} of {platform} are taken to be in one machine, each "
            "with 16 lanes of PCIe and no bridge of NVLink: its builder chooses that"
        )
    ranks = parallel.ranks if deployment.decoder.experts else parallel.tp
    if deployment.direct_gpus and ranks > 1:
        paths = _DIRECT if ranks <= deployment.direct_gpus else _THROUGH_HOST
        yield (
            f"what {ranks} GPUs send each other over PCIe is timed as {paths}: say which by "
            f"`direct_gpus` of {platform} in config/platforms.yaml"
        )
    if nodes_of(parallel, ENGINES[engine.name], deployment.node_gpus) != ON_ONE:
        yield (
            f"what GPUs on different nodes, of {deployment.node_gpus} each, send each other is "
            "timed by the network's datasheet and the latency of a hop in NCCL's source: no public "
            "table times it; a tp group that a node can hold is taken to lie on one"
        )
    if deployment.sums_by_flashinfer:
        yield (
            f"{engine} sums over GPUs by FlashInfer's kernels, of which there is no public curve: "
            "T(N) is of SGLang's, which send as many bytes as often"
        )
