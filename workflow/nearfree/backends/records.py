"""Every backend, once: its names, the modules that it runs, its environment and its rules.

Classes and functions are named by strings, `module:name`, so that nothing is imported before it
runs. The records themselves need only the standard library, since the command line's help reads
them.
"""

from collections.abc import Mapping
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from nearfree.backends.record import Backend, Rules

if TYPE_CHECKING:
    from nearfree.core.setting import Module

_ADAPTERS = "nearfree.backends.adapters"
_MODELS = "nearfree.models"
_torch = partial(Backend, devices=("cpu", "cuda"), environment="cpu")
_flashinfer = partial(
    Backend, package="flashinfer-python", imported="flashinfer", environment="flashinfer"
)


LLAMA_CPP_CUDA = "llama-cpp-cuda"
"""The package whose rules are those of llama.cpp's products on NVIDIA GPUs."""
_FLASHINFER = Rules(package="flashinfer-python", reader="flashinfer")
BACKENDS = (
    _torch(
        name="torch",
        names=("torch",),
        modules={
            "gemm": f"{_ADAPTERS}.torch_dense:TorchGemm",
            "dense_ffn": f"{_ADAPTERS}.torch_dense:TorchDenseFfn",
        },
        weights={"cpu": ("int8", "int4")},
    ),
    _torch(
        name="torch_sdpa",
        names=("torch-sdpa",),
        modules={
            "attention": f"{_ADAPTERS}.torch_sdpa:TorchSdpa",
            "mla": f"{_ADAPTERS}.torch_mla:TorchMla",
            "indexer": f"{_ADAPTERS}.torch_mla:TorchIndexer",
        },
        in_model=f"{_MODELS}.attention:torch_attention",
    ),
    _torch(
        name="torch_padded",
        names=("torch-padded",),
        modules={"moe_ffn": f"{_ADAPTERS}.torch_moe:TorchPaddedMoe"},
        in_model=f"{_ADAPTERS}.torch_moe:PADDED",
    ),
    _torch(
        name="torch_grouped",
        names=("torch-grouped",),
        modules={"moe_ffn": f"{_ADAPTERS}.torch_moe:TorchGroupedMoe"},
        in_model=f"{_ADAPTERS}.torch_moe:GROUPED",
    ),
    Backend(
        name="vllm",
        names=("vllm",),
        modules={
            "moe_ffn": f"{_ADAPTERS}.vllm_moe:VllmMoe",
            "engine": "nearfree.engines.vllm:VllmForward",
        },
        in_model=f"{_ADAPTERS}.vllm_moe:engine",
        package="vllm",
        environment="vllm",
        releases=("0.8.0", "0.33.0"),
        # The second form added block sizes N and K and the group size to BLOCK_SIZE_M; the third
        # the blocks of Marlin, the fourth warps, stages and the blocks of triton_kernels.
        rules=Rules(package="vllm", reader="vllm", form=4),
        printed={"vllm_0_9_1": "0.9.1"},
    ),
    Backend(
        name="vllm_linear",
        names=("vllm-linear",),
        modules={"gemm": None, "dense_ffn": None},
        package="vllm",
        engine="vllm",
        # Its rules are in vLLM's sdist, by vLLM's release.
        rules=Rules(package="vllm-linear", reader="vllm_linear"),
    ),
    Backend(
        name="sglang",
        names=("sglang",),
        modules={
            "moe_ffn": f"{_ADAPTERS}.sglang_moe:SglangMoe",
            "engine": "nearfree.engines.sglang:SglangForward",
        },
        in_model=f"{_ADAPTERS}.sglang_moe:engine",
        package="sglang",
        environment="sglang",
        releases=("0.4.2", "0.5.23"),
        rules=Rules(
            package="sglang",
            reader="sglang",
            form=4,
            # Requires-Dist in the METADATA of each wheel: torch==2.9.1 (0.5.9, 0.5.10),
            # torch==2.11.0 (0.5.14) and torch==2.14.1 (0.5.23); of torch 2.9.1, triton==3.5.1, of
            # torch 2.11.0, triton==3.6.0, of torch 2.14.1, triton~=3.8.0.
            triton={"0.5.9": "3.5.1", "0.5.10": "3.5.1", "0.5.14": "3.6.0", "0.5.23": "3.8.0"},
        ),
        printed={"sglang_0_5_9": "0.5.9"},
    ),
    Backend(
        name="flash_attn",
        names=("flash-attn",),
        modules={"attention": f"{_ADAPTERS}.flash_attn:FlashAttn"},
        in_model=f"{_MODELS}.attention:flash_2",
        package="flash-attn",
        imported="flash_attn",
        environment="flash_attn",
        releases=("2.5.7", "2.8.3.post2"),
        # Heads: csrc/flash_attn/flash_api.cpp of 2.8.3, line 1269; no call there takes sinks, and
        # vLLM has them in versions 3 and 4 alone (vllm/v1/attention/backends/fa_utils.py of 0.33.0,
        # line 319).
        alibi=True,
        rules=Rules(package="flash-attn", reader="flash_attn"),
        api="kvcache",
        # flash_attn_varlen_func with a table of pages: vllm/v1/attention/backends/flash_attn.py.
        vllm_api="varlen",
        # Engines keep their cache in pages, and 256 is the least that FlashAttention 2 takes.
        # Other backends choose the same tiles with and without pages.
        page_size=256,
        # mha_fwd_kvcache and the others check that keys have the dtype of queries, fp16 or bf16:
        # csrc/flash_attn/flash_api.cpp of 2.8.3, lines 374 and 1234.
        caches=(),
        printed={"flash_attn_2": "2.8.3"},
        vllm_file="flash_attn",
    ),
    Backend(
        name="flash_attn_3",
        # xformers contains its kernels and their source.
        names=("flash-attn-3", "xformers"),
        modules={"attention": f"{_ADAPTERS}.flash_attn_3:FlashAttn3"},
        in_model=f"{_MODELS}.attention:flash_3",
        package="xformers",
        environment="xformers",
        releases=("0.0.31", "0.0.34"),
        rules=Rules(package="xformers", reader="flash_attn_3"),
        capabilities=frozenset({80, 86, 89, 90}),
        api="kvcache",
        vllm_file="flash_attn",
    ),
    Backend(
        name="vllm_fa3",
        names=("vllm-fa3",),
        modules={"attention": None},
        package="vllm",
        # Its rules are those of vLLM's fork of FlashAttention, by vLLM's release; the package
        # `vllm` has the rules of the MoE kernels.
        rules=Rules(package="vllm-fa3", reader="vllm_fa3", form=2),
        capabilities=frozenset({90}),
        sinks=True,
        values_apart=True,
        api="varlen",
        page_size=16,
        vllm_file="flash_attn",
    ),
    Backend(
        name="vllm_triton",
        names=("vllm-triton",),
        modules={"attention": None},
        package="vllm",
        # One function of vLLM's sdist, by vLLM's release.
        rules=Rules(package="vllm-triton", reader="vllm_triton"),
        widest=512,
        sinks=True,
        # By a second kernel: vllm/v1/attention/backends/triton_attn_diffkv.py of 0.33.0.
        values_apart=True,
        vllm_file="triton_attn",
    ),
    Backend(
        name="flash_attn_4",
        names=("flash-attn-4",),
        modules={"attention": None},
        package="flash-attn-4",
        rules=Rules(package="flash-attn-4", reader="flash_attn_4"),
        # `learnable_sink`: flash_attn/cute/interface.py of 4.0.0b36, line 696.
        sinks=True,
        api="kvcache",
        vllm_file="flash_attn",
    ),
    _flashinfer(
        name="flashinfer_fa2",
        names=("flashinfer", "flashinfer-python", "flashinfer-fa2"),
        modules={"attention": f"{_ADAPTERS}.flashinfer:FlashInferFa2"},
        in_model=f"{_MODELS}.attention:flashinfer_fa2",
        releases=("0.2.0.post1", "0.7.2.post1"),
        rules=_FLASHINFER,
        # include/flashinfer/utils.cuh of 0.7.2.post1, line 217, and
        # BatchAttentionWithAttentionSinkWrapper, flashinfer/attention/_core.py there, line 389.
        widest=512,
        sinks=True,
        kernels="fa2",
        # The tile is chosen by the packed length and, since 0.7, by the cache's bytes
        # (FA2DetermineCtaTileQ, include/flashinfer/utils.cuh of 0.7.2.post1, line 411). The fa3
        # kernels take 8-bit keys with 8-bit queries alone: flashinfer/utils.py there, line 493.
        caches=("float8",),
        printed={"flashinfer": "0.6.13"},
        vllm_file="flashinfer",
    ),
    _flashinfer(
        name="flashinfer_fa3",
        names=("flashinfer-fa3",),
        modules={"attention": f"{_ADAPTERS}.flashinfer:FlashInferFa3"},
        in_model=f"{_MODELS}.attention:flashinfer_fa3",
        releases=("0.2.0.post1", "0.7.2.post1"),
        rules=_FLASHINFER,
        sinks=True,
        kernels="fa3",
        caches=(),
        capabilities=frozenset({90}),
        vllm_file="flashinfer",
    ),
    # TensorRT-LLM's kernels are known by public curves alone; for latent attention it runs
    # FlashMLA on Hopper and its own on Blackwell.
    Backend(
        name="trtllm",
        names=("tensorrt-llm", "trtllm"),
        modules={"moe_ffn": None},
        package="tensorrt-llm",
    ),
    Backend(
        name="trtllm_mla",
        names=("tensorrt-llm-mla", "trtllm-mla"),
        modules={"mla": None, "attention_layer": None},
        package="tensorrt-llm",
        engine="trtllm",
    ),
    # Latent attention and its indexer, by the kernel that an engine's release takes on a GPU: facts
    # of `sources.mla_paths` and `sources.mla_tiles`.
    Backend(
        name="vllm_mla",
        names=("vllm-mla",),
        modules={"mla": None, "indexer": None, "attention_layer": None},
        package="vllm",
        engine="vllm",
    ),
    Backend(
        name="sglang_mla",
        names=("sglang-mla",),
        modules={"mla": None, "indexer": None, "attention_layer": None},
        package="sglang",
        engine="sglang",
    ),
    # llama.cpp on a CPU, whose kernels are ggml's: releases of llama-cpp-python (0.x), and from 1
    # on those of a prebuilt library whose source node-llama-cpp contains.
    # Its libraries are called through ctypes; envs/engines.lock lists the builds.
    Backend(
        name="llama_cpp",
        names=("llama-cpp",),
        modules={"engine": "nearfree.engines.kernel:LlamaCppForward"},
        devices=("cpu",),
        package="llama-cpp-python",
        imported="ctypes",
        environment="cpu",
        rules=Rules(package="llama-cpp", reader="ggml"),
    ),
    # Its products on NVIDIA GPUs, which nothing here runs: kernels of the same releases' source.
    Backend(
        name="llama_cpp_cuda",
        modules={},
        package="llama-cpp-python",
        rules=Rules(package=LLAMA_CPP_CUDA, reader="ggml_cuda"),
    ),
    # OpenVINO on a CPU, through its own Python binding, in the environment that envs/engines.lock
    # names. Its kernels are in binaries, whose rules are not read.
    Backend(
        name="openvino",
        names=("openvino",),
        modules={"engine": "nearfree.engines.openvino_kernel:OpenVinoForward"},
        devices=("cpu",),
        package="openvino-genai",
        imported="ctypes",
        environment="cpu",
    ),
    # The CUDA graphs that an engine captures, to whose sizes it pads a step's tokens.
    Backend(
        name="vllm_graphs",
        modules={},
        package="vllm",
        rules=Rules(package="vllm-graphs", reader="vllm_graphs"),
    ),
    Backend(
        name="sglang_graphs",
        modules={},
        package="sglang",
        rules=Rules(package="sglang-graphs", reader="sglang_graphs"),
    ),
    _flashinfer(
        name="flashinfer_decode",
        modules={"attention": f"{_ADAPTERS}.flashinfer:FlashInferDecode"},
        releases=("0.2.0.post1", "0.7.2.post1"),
    ),
    # FlashInfer's kernels of latent attention: blocks of 64 packed rows, whatever the release
    # (MLAPlan, include/flashinfer/attention/scheduler.cuh of 0.5.3, lines 1471 to 1481).
    _flashinfer(
        name="flashinfer_mla_fa2",
        modules={"mla": f"{_ADAPTERS}.flashinfer_mla:FlashInferMlaFa2"},
        releases=("0.2.1", "0.7.2.post1"),
    ),
    _flashinfer(
        name="flashinfer_mla_fa3",
        modules={"mla": f"{_ADAPTERS}.flashinfer_mla:FlashInferMlaFa3"},
        releases=("0.2.2", "0.7.2.post1"),
        capabilities=frozenset({90}),
    ),
)
BY_NAME: Mapping[str, Backend] = {backend.name: backend for backend in BACKENDS}
BY_USERS_NAME: Mapping[str, Backend] = {
    name: backend for backend in BACKENDS for name in backend.names
}


def backends_of(module: "Module") -> dict[str, Backend]:
    """Return the backends that run a module, by name."""
    return {backend.name: backend for backend in BACKENDS if module in backend.modules}


def engine_backend(engine: str, module: "Module") -> Backend | None:
    """Return the backend of a module that an engine selects itself, None if that is not read."""
    return next(
        (backend for backend in backends_of(module).values() if backend.engine == engine), None
    )


def in_models(module: "Module") -> dict[str, str]:
    """Return the path of what runs a module in a whole model's forward, by backend."""
    backends = backends_of(module).values()
    return {backend.name: backend.in_model for backend in backends if backend.in_model}


def packages() -> tuple[str, ...]:
    """Return the distinct PyPI names of the packages that adapters call."""
    return tuple(dict.fromkeys(backend.package for backend in BACKENDS if backend.environment))


def ruled_packages(module: "Module") -> tuple[str, ...]:
    """Return the distinct PyPI names of the packages whose rules for a module are read."""
    packages = (backend.rules.package for backend in backends_of(module).values() if backend.rules)
    return tuple(dict.fromkeys(packages))


def page_size(name: str) -> int | None:
    """Return the positions per page of a backend's KV cache; None without pages."""
    return BY_NAME[name].page_size if name in BY_NAME else None


def checked_releases(name: str) -> str:
    """Return the range of releases against which a backend's adapter is checked, as text."""
    return " to ".join(BY_NAME[name].releases or ())


def load(path: str) -> Any:
    """Import and return the object of a path, `module:name`."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)
