"""What a model's forward executes: the work of its modules, each as often as it runs."""

from collections.abc import Iterator

from nearfree.backends.adapters.torch_moe import core_of
from nearfree.config.model_studies import uses
from nearfree.core.modules.registry import kind_of
from nearfree.core.setting import Setting
from nearfree.core.work import ExecutedWork
from nearfree.decoders.model import Model
from nearfree.decoders.modules import ModuleUse


def bytes_read(setting: Setting, model: Model, n: int) -> tuple[int, int]:
    """Return the bytes that a forward over N moves at least, and those of its largest module."""
    works = list(_works(setting, model, n))
    total = sum(work.bytes_compulsory * use.count for use, work in works)
    return total, max(work.bytes_compulsory for _, work in works)


def model_work(setting: Setting, model: Model, n: int) -> ExecutedWork:
    """Return the work of a forward over N positions a request.

    Rows that a backend pads are counted where the padding is this project's own (`torch_padded`);
    where the model's own router spreads its tokens they are counted as if it did so evenly.
    """
    works = list(_works(setting, model, n))
    spread = ", experts as if evenly used" if setting.routing == "router" else ""
    return ExecutedWork(
        flop_logical=sum(work.flop_logical * use.count for use, work in works),
        flop_executed=sum(work.flop_executed * use.count for use, work in works),
        bytes_compulsory=sum(work.bytes_compulsory * use.count for use, work in works),
        basis=f"the sum of {len(works)} kinds of modules{spread}; no padding inside kernels",
    )


def _works(setting: Setting, model: Model, n: int) -> Iterator[tuple[ModuleUse, ExecutedWork]]:
    for use in uses(setting, model, spread="balanced"):
        yield use, _work(use.setting, n)


def _work(module: Setting, n: int) -> ExecutedWork:
    core = core_of(module.backend)
    rows = core.block_rows(module.batch * n, module.experts or 0) if core else None
    return kind_of(module).executed(module, n, "", rows=rows)
