"""Footprint: a forward's memory, computed before it is made, within a tenth of the measured one."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import nearfree
import pytest
import torch
from backends.adapters.test_flashinfer import PREFILL
from decoders.files import CONFIG, write
from msgspec import structs
from nearfree.backends.adapters.flashinfer_plan import bytes_held
from nearfree.backends.adapters.kernel import ExecutionContext
from nearfree.config.model_studies import model_sweeps
from nearfree.core.setting import Mask
from nearfree.decoders.config_file import read_decoder
from nearfree.decoders.details import read_details
from nearfree.errors import EvidenceError
from nearfree.models import footprint as module
from nearfree.models.footprint import Footprint, footprint, refuse_too_large
from nearfree.models.forward import DecoderForward
from nearfree.models.kernel import ModelKernel
from nearfree.models.layers import RandomWeights
from once import one_in
from torch import Tensor
from whole_models import model_study, small

from models import libraries
from models.small import (
    BATCH,
    CONTEXT,
    KINDS,
    MOST,
    POSITIONS,
    SHARED,
    document,
    make_forward,
    tokens,
)

BIG: dict[str, dict[str, Any]] = {
    "grouped_queries": {"model": "qwen3_8b_cpu", "batch": 8, "context": 512, "most": 1024},
    "experts": {
        "model": "ling_2_0_mini_cpu", "batch": 12, "context": 512, "most": 1024,
        "num_experts_per_tok": 8, "vocab_size": 512,
    },
    "kv_cache": {"model": "ling_2_0_mini_cpu", "batch": 64, "context": 4096, "most": 8},
    "logits": {
        "model": "llada_2_1_mini_cpu", "batch": 64, "context": 64, "most": 256, "vocab_size": 12000,
    },
    "masks": {"model": "qwen3_8b_cpu", "batch": 1, "context": 32768, "most": 1024},
    "latents": {"model": "deepseek_v2_lite_cpu", "batch": 6, "context": 512, "most": 1024},
    "masks_of_heads": {"model": "deepseek_v2_lite_cpu", "batch": 1, "context": 8192, "most": 512},
    "windows": {"model": "gpt_oss_20b_cpu", "batch": 28, "context": 8192, "most": 32},
}  # fmt: skip
"""Forwards of 300 MB or more, by what they have most of."""
SLOW = [name for name in BIG if name != "kv_cache"]
"""Those of which a commit draws one."""
PROGRAM = """
import gc, json, re, sys
from pathlib import Path
import torch
from nearfree.decoders.config_file import read_decoder
from nearfree.decoders.details import read_details
from nearfree.models.forward import DecoderForward
from nearfree.models.layers import RandomWeights

def resident_bytes(which):
    status = Path("/proc/self/status").read_text()
    return int(re.search(which + r":\\s+(\\d+) kB", status)[1]) * 1024

def run(batch, context, most):
    decoder = read_decoder(path)
    forward = DecoderForward(
        decoder, read_details(path), RandomWeights(torch.bfloat16),
        batch=batch, context=context, max_positions=most, dtype=torch.bfloat16,
    )
    forward.forward(torch.randint(decoder.vocabulary, (batch, most)))

path, shape = Path(sys.argv[1]), json.loads(sys.argv[2])
torch.set_num_threads(1)
with torch.inference_mode():
    run(2, 8, 4)
    gc.collect()
    before = resident_bytes("VmRSS")
    run(*shape)
print(resident_bytes("VmHWM") - before)
"""
"""Prints the peak of the resident memory of a forward's making and running, in bytes.

`VmHWM` is what `ru_maxrss` tells, but begins anew with the program: `ru_maxrss` begins with that
of the process that started it."""


def needed(path: Path, positions: tuple[int, ...] = POSITIONS, **options: Any) -> Footprint:
    """Return the footprint of a config file's forward, in bfloat16."""
    options = {"batch": BATCH, "context": CONTEXT, "dtype": torch.bfloat16} | options
    return footprint(read_decoder(path), read_details(path), positions=positions, **options)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux to tell the peak")
@pytest.mark.parametrize(
    "most_of",
    [
        "kv_cache",
        *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW[one_in(len(SLOW))]),
    ],
)
def test_the_footprint_is_what_is_measured(tmp_path: Path, most_of: str) -> None:
    """The peak of the resident memory is within a tenth of the footprint.

    The heap of the process gives back at once what is freed, so that what it keeps for later is not
    counted.
    """
    options = dict(BIG[most_of])
    config = json.loads((CONFIG / "models" / f"{options.pop('model')}.json").read_text())
    shape = [options.pop(name) for name in ("batch", "context", "most")]
    path = write(tmp_path, config | options, "config.json")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path), json.dumps(shape)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ
        | {
            "PYTHONPATH": str(Path(nearfree.__file__).parents[1]),
            "MALLOC_MMAP_THRESHOLD_": "131072",
        },
    )
    batch, context, most = shape
    footprint = needed(path, (most,), batch=batch, context=context)
    assert footprint.total > 300e6
    assert int(done.stdout) == pytest.approx(footprint.total, rel=0.1)


def kept_bytes(tensors: list[Tensor]) -> int:
    """Return the bytes of the tensors' storages, each counted once."""
    storages = [tensor.untyped_storage() for tensor in tensors]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def tensors_in(owner: object) -> list[Tensor]:
    """Return the tensors that an object of the models holds, nested ones included."""
    if isinstance(owner, Tensor):
        return [owner]
    if isinstance(owner, list | tuple):
        return [tensor for item in owner for tensor in tensors_in(item)]
    if isinstance(owner, dict):
        return tensors_in(list(owner.values()))
    if isinstance(owner, partial) or not type(owner).__module__.startswith("nearfree.models."):
        return []
    return tensors_in(list(getattr(owner, "__dict__", {}).values()))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_those_that_a_forward_asks_for(
    tmp_path: Path, kind: str, dtype: torch.dtype, *, tied: bool
) -> None:
    """Each family's weights are counted to the byte, a router's float32 copy included."""
    path = write(tmp_path, document(kind, tie_word_embeddings=tied), "config.json")
    made: dict[tuple[object, ...], Tensor] = {}
    forward = DecoderForward(
        read_decoder(path),
        read_details(path),
        RandomWeights(dtype, kept=made),
        batch=BATCH,
        context=CONTEXT,
        max_positions=MOST,
        dtype=dtype,
    )
    footprint = needed(path, dtype=dtype)
    held = [*made.values(), *tensors_in([*forward.layers, forward._norm])]
    assert footprint.weights == kept_bytes(held)
    assert footprint.kv_cache == kept_bytes(tensors_in(forward.caches))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_a_shared_cache_is_held_once(tmp_path: Path, dtype: torch.dtype) -> None:
    """Gemma 4's shared caches and per-layer inputs are counted once."""
    path = write(tmp_path, document("gemma4_text", **SHARED), "config.json")
    made: dict[tuple[object, ...], Tensor] = {}
    forward = make_forward(
        tmp_path, document("gemma4_text", **SHARED), weights=RandomWeights(dtype, kept=made),
        dtype=dtype,
    )  # fmt: skip
    footprint = needed(path, dtype=dtype)
    assert footprint.weights == kept_bytes([*made.values(), *tensors_in([*forward.layers])])
    assert footprint.kv_cache == kept_bytes(tensors_in(forward.caches))


MASKED: list[tuple[Mask, dict[str, Any]]] = [
    ("causal", document("mistral", sliding_window=None)),
    ("causal", document("mistral", sliding_window=9)),
    ("block", document("mistral", sliding_window=None)),
    *(("causal", document(kind)) for kind in KINDS),
    ("causal", document("gemma4_text", **SHARED)),
]


@pytest.mark.parametrize(("mask", "config"), MASKED)
def test_masks_and_rotations_are_known(tmp_path: Path, mask: Mask, config: dict[str, Any]) -> None:
    """Each N above 1 has a causal mask over the keys inside a window."""
    path = write(tmp_path, config, "config.json")
    forward = DecoderForward(
        read_decoder(path),
        read_details(path),
        RandomWeights(torch.bfloat16),
        batch=BATCH,
        context=CONTEXT,
        max_positions=MOST,
        dtype=torch.bfloat16,
        mask=mask,
    )
    for n in POSITIONS:
        forward.forward(tokens(n))
    footprint, places = needed(path, mask=mask), forward._kind_inputs
    assert footprint.masks == kept_bytes(tensors_in([place.runner for place in places]))
    assert footprint.tables == kept_bytes(tensors_in([place[2:] for place in places]))
    assert needed(path, mask=mask, device="cuda").masks == 0


def test_what_controlled_routing_keeps_is_known(tmp_path: Path) -> None:
    """The row order of each N is counted, at its largest padding."""
    path = write(tmp_path, document("qwen3_moe"), "config.json")
    own, balanced = (needed(path, routing=routing) for routing in ("router", "balanced"))
    pairs = [BATCH * n * 4 for n in POSITIONS]
    most = [2 * count + min(count, 16) * 15 for count in pairs[:3]] + [2 * pairs[3] + 16 * 63]
    assert balanced.tables - own.tables == 8 * sum(most)


@pytest.mark.parametrize("kind", KINDS)
def test_more_of_anything_takes_more(tmp_path: Path, kind: str) -> None:
    """A larger batch, context, N or dtype, or one N more, needs more memory."""
    path = write(tmp_path, document(kind), "config.json")
    least = needed(path).total
    assert needed(path, batch=BATCH + 1).total > least
    assert needed(path, context=CONTEXT + 1).total > least
    assert needed(path, dtype=torch.float32).total > least
    assert needed(path, (*POSITIONS, 34)).total > needed(path, (*POSITIONS[:-1], 34)).total > least


def test_pages_and_plans_are_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """FlashInfer's cache has whole pages, one workspace, and a wrapper per N."""
    wrappers = libraries.flashinfer(monkeypatch)
    made: dict[tuple[object, ...], Tensor] = {}
    config, backend = document("qwen3"), "flashinfer_fa2"
    forward = make_forward(tmp_path, config, attention=backend, shared=made)
    for n in POSITIONS:
        forward.forward(tokens(n))
    footprint = needed(tmp_path / "config.json", attention=backend, dtype=torch.float32)
    assert footprint.kv_cache == kept_bytes([*forward.keys, *forward.values])
    assert len(wrappers.parts[PREFILL].calls) == len(POSITIONS)
    assert made["flashinfer", 0].nbytes == bytes_held("fa2", 0)


@pytest.mark.parametrize(("backend", "plan_mib"), [("flashinfer_fa2", 8), ("flashinfer_fa3", 72)])
def test_workspaces_are_counted(tmp_path: Path, backend: str, plan_mib: int) -> None:
    """FlashInfer takes 512 MiB once and a wrapper's memory per N; torch takes nothing."""
    path = write(tmp_path, document("qwen3"), "config.json")
    workspaces = needed(path, (1, 2, 7, 7), attention=backend).workspaces / 2**20
    assert workspaces == pytest.approx(512 + 3 * plan_mib, abs=1)
    assert needed(path, (1, 2, 7)).workspaces == 0


def test_a_models_workspaces_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model on FlashInfer is refused with the 0.5 GB of its workspace."""
    monkeypatch.setattr(module, "free_bytes", lambda _: 10**4)
    model = small()
    sweep = next(iter(model_sweeps(model_study(), model)))
    setting = structs.replace(sweep.setting, backend="flashinfer_fa2")
    with pytest.raises(EvidenceError, match=r"workspaces 0\.6, "):
        ModelKernel(setting, sweep.positions, ExecutionContext(models={"small": model.plain}))


def test_copies_take_turns(tmp_path: Path) -> None:
    """Each copy counts everything except the temporary tensors of one forward."""
    path, backend = write(tmp_path, document("qwen3_moe")), "flashinfer_fa2"
    one, three = (
        structs.asdict(needed(path, copies=copies, attention=backend)) for copies in (1, 3)
    )
    assert three == {name: part * (3 - 2 * (name == "activations")) for name, part in one.items()}


def test_parts_are_the_total(tmp_path: Path) -> None:
    """The total is the sum of the parts."""
    footprint = needed(write(tmp_path, document("llada2_moe")), attention="flashinfer_fa3")
    parts = structs.asdict(footprint)
    assert min(parts.values()) > 0
    assert footprint.total == sum(parts.values())


def test_a_tenth_of_the_memory_stays_free(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A forward is accepted up to 0.9 of the free memory, and refused above."""
    path = write(tmp_path, document("qwen3"))
    footprint = needed(path)
    options: dict[str, Any] = {
        "batch": BATCH,
        "context": CONTEXT,
        "max_positions": MOST,
        "device": "cpu",
    }
    for free in (footprint.total * 10 // 9 + 1, None):
        monkeypatch.setattr(module, "free_bytes", lambda _, free=free: free)
        refuse_too_large(footprint, read_decoder(path), **options)
    monkeypatch.setattr(module, "free_bytes", lambda _: footprint.total * 10 // 9 - 1)
    with pytest.raises(EvidenceError, match="small with L=23, batch 2, N=33 needs"):
        refuse_too_large(footprint, read_decoder(path), **options)


def test_the_refusal_has_all_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal has the total, its parts, the free memory, and what to reduce."""
    path = CONFIG / "models" / "qwen3_8b.json"
    footprint = needed(path, (1, 64), batch=1, context=4096)
    monkeypatch.setattr(module, "free_bytes", lambda _: 3 * 10**9)
    with pytest.raises(EvidenceError) as error:
        refuse_too_large(
            footprint, read_decoder(path), batch=1, context=4096, max_positions=64, device="cpu"
        )
    assert error.value.what == (
        "qwen3_8b with L=4096, batch 1, N=64 needs 17.0 GB (weights 16.4, KV cache 0.6, "
        "masks 0.0, tables 0.0, workspaces 0.0, activations 0.0), and 3.0 GB are free"
    )
    assert error.value.remedy == "Choose a smaller model, context or batch, or fewer positions"
