"""Identity: a machine is measured only as the platform that is on record."""

from pathlib import Path

import pytest
from conftest import write_payloads
from msgspec.structs import replace
from nearfree.config.files import Config
from nearfree.core.plan import ProbePlan
from nearfree.errors import EvidenceError, HardwareError
from nearfree.hardware import identity
from nearfree.hardware.identity import (
    check_device,
    check_identity,
    cpu_fingerprint,
    known_probe,
    machine_fingerprint,
    require_probe,
    this_machine,
)
from nearfree.hardware.platforms import Platform, driver_names
from nearfree.log.events import BandwidthPeak, ComputePeak, Fingerprint, HardwareProbed
from nearfree.log.names import Layout
from nearfree.log.take import take_name

SHIPPED = Path(__file__).parents[2] / "config"
KNOWN = Fingerprint(kind="cpu", model="A", features=("avx2",), cores=4, caches={"l2": 1024})
PLAN = ProbePlan(dtypes=("float32",))
PROBED = HardwareProbed(
    fingerprint=KNOWN,
    compute=(ComputePeak(dtype="float32", gflop_s=9.0, size=8, samples=(9.0,), guarded=False),),
    bandwidth=(BandwidthPeak(method="stream", gb_s=3.0, bytes_read=8, samples=(3.0,)),),
    threads=1,
)


def record(layout: Layout, fingerprint: Fingerprint, *, take: int = 1) -> None:
    """Seal a probe that found a fingerprint."""
    name = take_name("cpu", "hardware", take, PLAN)
    write_payloads(layout, name, PLAN, replace(PROBED, fingerprint=fingerprint))


def test_before_the_first_probe_any_machine_is_accepted(layout: Layout) -> None:
    """Without a probe on record no machine is refused."""
    assert known_probe(layout, "cpu") is None
    check_identity(layout, "cpu", KNOWN)


def test_the_same_machine_is_accepted(layout: Layout) -> None:
    """A machine with the recorded fingerprint is the platform."""
    record(layout, KNOWN)
    check_identity(layout, "cpu", KNOWN)
    assert require_probe(layout, "cpu").fingerprint == KNOWN


@pytest.mark.parametrize(
    ("field", "value"),
    [("model", "B"), ("features", ()), ("cores", 8), ("caches", {"l2": 2048})],
)
def test_another_machine_is_refused(layout: Layout, field: str, value: object) -> None:
    """A machine that differs is refused by the field, with a new platform name proposed."""
    record(layout, KNOWN)
    here = replace(KNOWN, **{field: value})
    with pytest.raises(HardwareError, match=f"not the platform 'cpu' of the log: {field} is") as e:
        check_identity(layout, "cpu", here)
    assert "`cpu_2: {kind: cpu}`" in e.value.remedy
    assert "`here: [cpu_2]`" in e.value.remedy
    assert "another --results" in e.value.remedy


def test_a_cache_that_tells_no_size_is_none_of_the_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some virtual machines name caches without their size: the others make the fingerprint."""
    for number, size in enumerate(("32K", "", "1M")):
        folder = tmp_path / f"index{number}"
        folder.mkdir()
        entries = {"level": str(number + 1), "type": "Unified", "size": size}
        for name, text in entries.items():
            if text:
                (folder / name).write_text(f"{text}\n")
    monkeypatch.setattr(identity, "_CACHE", tmp_path)
    assert cpu_fingerprint().caches == {"l1": 32 * 1024, "l3": 1024**2}


def test_the_first_probe_decides(layout: Layout) -> None:
    """The first probe on record identifies the platform; later ones do not change it."""
    record(layout, KNOWN)
    record(layout, replace(KNOWN, model="B"), take=2)
    assert require_probe(layout, "cpu").fingerprint == KNOWN


def test_a_measured_machine_is_a_probed_platform(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine is measured once its platform was probed, on the machine of the probe."""
    monkeypatch.setattr(identity, "machine_fingerprint", {"cpu": KNOWN}.__getitem__)
    with pytest.raises(EvidenceError, match="no probe of cpu"):
        this_machine(layout, "cpu")
    record(layout, KNOWN)
    assert this_machine(layout, "cpu") == KNOWN
    monkeypatch.setattr(identity, "machine_fingerprint", lambda _: replace(KNOWN, model="B"))
    with pytest.raises(HardwareError, match="this machine is not the platform 'cpu'"):
        this_machine(layout, "cpu")


def test_a_platform_that_was_not_probed(layout: Layout) -> None:
    """A function that needs a probe refuses without one and names the command."""
    with pytest.raises(EvidenceError, match="no probe of cpu") as caught:
        require_probe(layout, "cpu")
    assert "nearfree probe cpu" in caught.value.remedy


@pytest.mark.parametrize("model", ["NVIDIA H200", "nvidia h200", "h200"])
def test_a_device_has_one_of_its_platform_s_names(model: str) -> None:
    """The driver's name counts as the datasheet has it, or as an alias, however it is written."""
    sheets = Config(SHIPPED).platforms
    here = Fingerprint(kind="cuda", model=model, features=(), cores=132, caches={})
    check_device("h200", here, driver_names("h200", sheets["h200"]))


def test_another_device_is_no_first_probe(layout: Layout) -> None:
    """A device with another name is refused even before the first probe."""
    names = driver_names("h200", Config(SHIPPED).platforms["h200"])
    here = Fingerprint(
        kind="cuda", model="NVIDIA A100-SXM4-80GB", features=(), cores=108, caches={}
    )
    with pytest.raises(HardwareError, match=r"'NVIDIA A100-SXM4-80GB'.*'h200'") as caught:
        check_device("h200", here, names)
    assert "gpu_model" in caught.value.remedy


def test_a_platform_without_a_known_name_takes_any_device() -> None:
    """Where no document tells the device's name, as of a CPU, nothing is compared."""
    assert driver_names("cpu", Platform(kind="cpu")) == ()
    check_device("cpu", Fingerprint(kind="cpu", model="any", features=(), cores=1, caches={}), ())


def test_nothing_is_measured_on_an_amd_gpu() -> None:
    """A platform of kind rocm is a datasheet: no machine is taken for it."""
    with pytest.raises(HardwareError, match="AMD's GPUs are not measured"):
        machine_fingerprint("rocm")
