"""What sbatch is told of a place."""

from nearfree.cluster.jobs import options
from nearfree.places import Cluster, Place


def test_only_what_is_said_is_asked_for() -> None:
    """A place without words gives no option; each field gives its own."""
    assert options(Place()) == []
    place = Place(partition="gpu", gpus=2, gpu_model="h20", cpus=8, memory_gb=3, exclusive=True)
    assert options(place) == [
        "--partition=gpu",
        "--gpus=h20:2",
        "--cpus-per-task=8",
        "--mem=3G",
        "--exclusive",
    ]


def test_no_gpu_is_asked_for_a_cpu() -> None:
    """A CPU's job says nothing of GPUs."""
    assert not any("gpu" in option for option in options(Cluster().place("cpu", "cpu", "x")))
