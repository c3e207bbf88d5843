"""What an answer about a deployment leaves out, or takes from something that is like it."""

from typing import TYPE_CHECKING

from nearfree.backends.attention_order import STAND_INS
from nearfree.backends.decode_kernels import BY_FLASHINFER, DECODERS
from nearfree.backends.public_kernels import BY_PUBLIC_NAME, TWINS
from nearfree.decoders.attention_uses import LAYER
from nearfree.decoders.caveats import caveats
from nearfree.decoders.engines import ENGINES, TRTLLM
from nearfree.decoders.modules import layer_format
from nearfree.decoders.nodes import ON_ONE, nodes_of
from nearfree.derive.engine_step.form import reached

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
"""What sums of 16 MiB reach by a ring over PCIe: AIConfigurator 0.12.0, custom_allreduce_perf and
nccl_perf of l40s, of which one, SGLang 0.5.12's, has 20 GB/s, and of rtx_pro_6000_server, which has
23 to 28 among 4 and 8. Of two GPUs tables have 16 to 20 and 35 GB/s, but three of RTX PRO 6000 have
15."""

_OTHER_GRAPHS = (
    "runs decode steps in CUDA graphs of its cuda_graph_config, by default of exactly 1 to 32, 64 "
    "and 128 requests: by T(N) a step is neither padded to one nor outside of all"
)
"""Source: NVIDIA/TensorRT-LLM at 0004396, tensorrt_llm/llmapi/llm_args.py, BaseCudaGraphConfig:
padding is off by default, and graphs are made without `cuda_graph_config`, too."""


def left_out(asked: "Deployment") -> tuple[str, ...]:
    """Return what T(N) of a forward leaves out, and a context that its model is not made for."""
    said = list(filter(None, (asked.too_long, asked.class_note)))
    if asked.assembled and asked.parallel.gpus > 1:
        said.append(
            f"{asked.parallel.gpus} of {asked.platform} are taken to be in one machine, each "
            "with 16 lanes of PCIe and no bridge of NVLink: its builder chooses that"
        )
    together = asked.parallel.ranks if asked.decoder.experts else asked.parallel.tp
    if asked.direct_gpus and together > 1:
        paths = _DIRECT if together <= asked.direct_gpus else _THROUGH_HOST
        said.append(
            f"what {together} GPUs send each other over PCIe is timed as {paths}: say which by "
            f"`direct_gpus` of {asked.platform} in config/platforms.yaml"
        )
    if nodes_of(asked.parallel, ENGINES[asked.engine.name], asked.node_gpus) != ON_ONE:
        said.append(
            f"what GPUs on different nodes, of {asked.node_gpus} each, send each other is timed "
            "by the network's datasheet and the latency of a hop in NCCL's source: no public "
            "table times it; a tp group that a node can hold is taken to lie on one"
        )
    if asked.stand_in:
        said.append(
            f"{asked.moe} may run a kernel of FlashInfer's for these experts on this GPU: T(N) "
            "is of Triton's"
        )
    if asked.served and asked.engine.name == TRTLLM.name:
        said.append(f"{asked.engine.name} {_OTHER_GRAPHS}")
    if asked.library in TWINS:
        backend, kernel = TWINS[asked.library]
        said.append(
            f"curves of {BY_PUBLIC_NAME[asked.library]} for experts are those of {backend}'s "
            f"kernel of the same source, {kernel}"
        )
    if asked.fused:
        said.append(
            f"{asked.engine.name} runs the shared expert as one more of the routed ones, which "
            f"every token takes, by the blocks of {asked.fused} experts: timed are the "
            f"{asked.fused - 1} by their own blocks, and the shared one beside them"
        )
    if ENGINES[asked.engine.name].over_all and asked.parallel.dp > 1:
        said.append(
            f"{asked.engine.name} gathers the rows of all groups before a Dense FFN, shared "
            "experts and the LM head, which it cuts over all ranks: that is not counted"
        )
    decoders = {each.kernel: each for each in DECODERS}
    own = decoders.get(asked.decoder_kernel or "")
    if own is not None and not (own.own and asked.attention.name == own.backend):
        said.append(
            f"{own.engine} decodes by {own.kernel}: tiles of {asked.attention} stand for its own"
        )
    if own is None and (asked.engine.name, asked.attention.name) in STAND_INS:
        said.append(
            f"{asked.engine.name} attends by kernels of its own: tiles of {asked.attention} "
            "stand for them"
        )
    if asked.other_kernel:
        said.append(
            f"{asked.engine} decodes {asked.other_kernel}: "
            f"tiles of {asked.attention} stand for its own"
        )
    said += [
        f"{asked.engine} decodes this model by FlashInfer's kernel on this GPU, of which there "
        f"is no public curve: T(1) of attention is of {each.kernel}"
        for each in BY_FLASHINFER
        if each.kernel == asked.decoder_kernel
        and asked.decoder.model_type in each.models
        and (each.since is None or reached(asked.engine.version, each.since))
        and not (each.until and reached(asked.engine.version, each.until))
    ]
    of_layers = asked.formats.of("attention", LAYER).weights
    if asked.decoder.in_one and of_layers != layer_format(asked.formats):
        said.append(
            f"attention layers with weights in {of_layers} are timed as in "
            f"{layer_format(asked.formats)}, of as many bits: no public curve is of theirs"
        )
    return (*said, *caveats(asked.decoder))
