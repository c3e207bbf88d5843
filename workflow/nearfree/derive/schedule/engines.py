"""The engines that take schedules, by the name that the command line calls them."""

from nearfree.derive.schedule import llama_cpp, sglang, vllm

ENGINES = {engine.name: engine for engine in (vllm.ENGINE, sglang.ENGINE, llama_cpp.ENGINE)}
BY_LENGTHS = {name: engine.lengths for name, engine in ENGINES.items() if engine.lengths}
"""What writes the option of each engine that takes draft lengths by batch size."""
