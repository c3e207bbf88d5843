"""Sweeps and plans: what they may contain, and how they are named."""

from typing import Any

import msgspec
import pytest
from conftest import make_plan, make_setting
from nearfree.core.plan import (
    MeasurePlan,
    Order,
    ProbePlan,
    Sweep,
    plan_digest,
    read_orders,
    write_orders,
)
from nearfree.errors import ConfigError


def test_a_plan_survives_json() -> None:
    """A plan read back from its JSON has the same digest."""
    plan = make_plan(dtype="auto")
    decoded = msgspec.json.decode(msgspec.json.encode(plan), type=MeasurePlan)
    assert (decoded, plan_digest(decoded)) == (plan, plan_digest(plan))


@pytest.mark.parametrize("changed", [{"rounds": 4}, {"positions": (1, 2)}, {"batch": 2}])
def test_another_plan_has_another_digest(changed: dict[str, Any]) -> None:
    """A change of any field gives another digest, so another take."""
    assert plan_digest(make_plan(**changed)) != plan_digest(make_plan())


def test_a_sweep_needs_its_baseline() -> None:
    """A grid without its baseline N is refused with both."""
    with pytest.raises(ConfigError, match=r"grid \[2, 4\] lacks its baseline N=1"):
        Sweep(setting=make_setting(), positions=(2, 4))
    assert Sweep(setting=make_setting(), positions=(2, 4), baseline=2).baseline == 2


def test_auto_is_the_machines_dtype() -> None:
    """A setting with the dtype `auto` gets that of the machine; any other keeps its own."""
    for dtype, resolved in (("auto", "float32"), ("bfloat16", "bfloat16")):
        setting = make_setting(dtype=dtype)
        sweep = Sweep(setting=setting, positions=(1,))
        assert sweep.resolved("float32") == msgspec.structs.replace(setting, dtype=resolved)


@pytest.mark.parametrize("positions", [(2, 1), (1, 2, 2), (1, 4, 2)])
def test_a_grid_rises(positions: tuple[int, ...]) -> None:
    """A grid that is not strictly rising is refused."""
    with pytest.raises(ConfigError, match="not strictly rising"):
        Sweep(setting=make_setting(), positions=positions)


def test_a_bad_setting_is_refused_in_a_sweep() -> None:
    """A sweep checks its setting."""
    with pytest.raises(ConfigError, match="lacks d_ff"):
        Sweep(setting=make_setting(d_ff=None), positions=(1,))


def test_a_plan_without_sweeps_is_refused() -> None:
    """A plan that asks for nothing is refused, not measured."""
    raw = msgspec.json.encode(make_plan())
    document = msgspec.json.decode(raw) | {"sweeps": []}
    with pytest.raises((ConfigError, msgspec.ValidationError), match="sweeps"):
        msgspec.json.decode(msgspec.json.encode(document), type=MeasurePlan)


@pytest.mark.parametrize(
    ("field", "value"), [("guard_s", 0), ("guard_s", -1.0), ("rounds", 0), ("dtypes", ["x"])]
)
def test_a_bad_probe_plan_is_refused_by_name(field: str, value: object) -> None:
    """A probe plan that cannot be followed is refused by its field's name."""
    with pytest.raises(msgspec.ValidationError, match=rf"\$\.{field}"):
        msgspec.convert({"kind": "probe", "dtypes": ["float32"], field: value}, ProbePlan)


def test_a_round_has_a_point_for_every_n_of_every_sweep() -> None:
    """A round has one point for every N of every sweep."""
    sweep = Sweep(setting=make_setting(batch=2), positions=(1, 2))
    plan = make_plan(positions=(1, 2, 4))
    two_sweeps = msgspec.structs.replace(plan, sweeps=(*plan.sweeps, sweep))
    assert (plan.points_a_round, two_sweeps.points_a_round) == (3, 5)


ORDER = Order(scope="h20", stream="dense_ffn", take=1, device="cuda", plan=make_plan())


@pytest.mark.parametrize(
    "field", ["scope", "stream", "plan.environment", "plan.sweeps.0.setting.model_digest"]
)
def test_a_name_with_a_newline_at_its_end_is_refused(field: str) -> None:
    """No take could be read back from a folder of such a scope; a digest is its digits alone."""
    document = msgspec.json.decode(write_orders(iter([ORDER])))
    *path, field_name = field.split(".")
    place = document
    for key in path:
        place = place[int(key) if key.isdecimal() else key]
    place[field_name] = f"{place.get(field_name) or '0' * 12}\n"
    with pytest.raises(ConfigError, match=rf"orders, line 1 .*{field_name}"):
        read_orders(msgspec.json.encode(document).decode(), "orders")


def test_an_order_that_is_nested_too_deeply_is_refused() -> None:
    """An order that the decoder cannot follow is refused with its line, like any other text."""
    line = write_orders(iter([ORDER])).rstrip()
    deep = "[" * 5000 + "]" * 5000
    assert '"plan":{' in line
    line = line.replace('"plan":{', f'"plan":{{"models":{{"a":{{"x":{deep}}}}},', 1)
    with pytest.raises(ConfigError, match="orders, line 2 is no order"):
        read_orders(f"{write_orders(iter([ORDER]))}{line}", "orders")
