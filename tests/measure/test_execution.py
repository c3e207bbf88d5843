"""Where a plan's kernels run: which copies a protocol may ask for on each kind of device."""

import pytest
from conftest import make_plan
from derive.tables.logs import MACHINE
from msgspec.structs import replace
from nearfree.core.plan import MeasurePlan
from nearfree.errors import ConfigError
from nearfree.log.events import Fingerprint
from nearfree.measure.prepare import execution_of

GPU = Fingerprint(kind="cuda", model="Test GPU", features=(), cores=132, caches={"l2": 5 * 10**7})


def plan(copies: int) -> MeasurePlan:
    """Return a plan with some number of copies that take turns."""
    made = make_plan(backend="torch")
    return replace(made, protocol=replace(made.protocol, weight_copies=copies))


def test_as_many_copies_as_are_cold_is_for_cpus() -> None:
    """On a GPU, whose graph replays fixed copies, the number of copies must be given."""
    with pytest.raises(ConfigError, match="weight_copies 0 is for CPUs") as caught:
        execution_of(GPU, plan(0))
    assert caught.value.remedy
    assert execution_of(MACHINE, plan(0)).copies == 0


@pytest.mark.parametrize("copies", [1, 2, 5])
def test_an_execution_is_the_machines(copies: int) -> None:
    """An execution has the machine's largest cache, and its SMs if it is a GPU."""
    here, there = execution_of(MACHINE, plan(copies)), execution_of(GPU, plan(copies))
    assert (here.device, here.copies, here.cache_bytes, here.sms) == ("cpu", copies, 2**23, None)
    assert (there.device, there.copies, there.cache_bytes, there.sms) == (
        "cuda",
        copies,
        5 * 10**7,
        132,
    )


def test_an_execution_holds_the_plans_models() -> None:
    """Kernels find the models of their plan in their execution."""
    models = {"small": {"decoder": {}}}
    assert execution_of(MACHINE, replace(plan(2), models=models)).models == models
    assert execution_of(MACHINE, plan(2)).models == {}
