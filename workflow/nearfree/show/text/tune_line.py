"""The command line to paste: a tuned setting as options of the engine's own program."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

from nearfree.core.drafting import Drafting
from nearfree.derive.schedule.llama_cpp import MODEL
from nearfree.engines.openvino_properties import properties

_SHELL = {"llama_cpp": ("llama-server", "-m", "-t")}


def paste(
    engine: str,
    drafting: Drafting,
    model: Path,
    draft: Path | None,
    temperature: float,
    *,
    batch: int = 1,
    positions: int = 0,
) -> str:
    """Return the command line, or the Python settings, that run an engine with a drafting setting.

    Parameters
    ----------
    batch, positions
        Prompts decoded at once, and the positions of each. A server with that number of slots
        gives each its own cache, as the tuning did.
    """
    if engine not in _SHELL:
        return _python(drafting, model, draft)
    program, weights, threads = _SHELL[engine]
    options = [program, weights, str(model), threads, str(drafting.threads)]
    options += [] if drafting.repack else ["--no-repack"]
    if drafting.drafter == "draft_model":
        options += ["-md", str(draft), "--spec-type", MODEL, "--spec-draft-n-max", str(drafting.k)]
    else:
        options += ["--spec-type", drafting.drafter.replace("_", "-"), *_sizes(drafting)]
    if batch > 1:
        options += ["--parallel", str(batch), "-c", str(batch * positions)]
    if temperature:
        options += ["--samplers", "temperature", "--temp", f"{temperature:g}"]
    return shlex.join(options)


def _sizes(drafting: Drafting) -> Iterator[str]:
    """Yield the options of llama.cpp's lookup drafters: n-gram length and draft length."""
    sizes: dict[str, int] = {}
    if drafting.drafter == "ngram_mod":
        sizes = {"n-match": drafting.ngram_max, "n-max": drafting.k, "n-min": drafting.shortest}
    elif drafting.drafter not in ("none", "ngram_cache"):  # the latter has no such option
        sizes = {"size-n": drafting.ngram_max, "size-m": drafting.k}
    for name, value in sizes.items():
        yield f"--spec-{drafting.drafter.replace('_', '-')}-{name}"
        yield str(value)


def _python(drafting: Drafting, model: Path, draft: Path | None) -> str:
    """Return a call of openvino_genai's pipeline; `prompt` stands for the user's text."""
    compiled = properties(drafting.threads, drafting.kv_dtype)
    options = ", ".join(f"{name}={json.dumps(value)}" for name, value in compiled.items())
    drafter, lengths = "", ""
    if drafting.drafter == "draft_model":
        drafter = f', draft_model=ov.draft_model({str(draft)!r}, "CPU", {options})'
    elif drafting.drafter != "none":
        drafter, lengths = ", prompt_lookup=True", f", max_ngram_size={drafting.ngram_max}"
    settings = f", num_assistant_tokens={drafting.k}{lengths}" if drafter else ""
    pipeline = f'ov.LLMPipeline({str(model)!r}, "CPU", {options}{drafter})'
    return f"import openvino_genai as ov; {pipeline}.generate(prompt{settings})"
