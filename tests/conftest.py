"""What many tests need: composed configurations, an inventory without hardware, and rows made by hand."""

from __future__ import annotations

import gc
import importlib.util
import itertools
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from omegaconf import DictConfig

from pipeline.base.domain.machine_state import cpu_device
from pipeline.base.domain.records import Device, Plan
from pipeline.base.system import locks
from pipeline.plan import config_reader, plan_builder
from pipeline.plan import plan_builder as planning
from pipeline.plan.config_schema import Config
from pipeline.plan.inventory import Inventory
from pipeline.plan.inventory import take_inventory as take_inventory
from tests.support import changed_rooms, experiments, forks
from tests.support.experiments import composed

pytest_plugins = ["tests.support.run_fixtures", "tests.support.tracking_fixtures"]
_MEMORY = Path("/dev/shm")
_MEMORY_GIB = 4


def _keep_files_in_memory() -> None:
    """Put temporary folders into memory, where the machine offers it: waiting for a disk is a third of the suite."""
    if "TMPDIR" in os.environ or not os.access(_MEMORY, os.W_OK):
        return
    file_system = os.statvfs(_MEMORY)
    if file_system.f_bavail * file_system.f_frsize >= _MEMORY_GIB * 2**30 and not file_system.f_flag & os.ST_NOEXEC:
        os.environ["TMPDIR"] = str(_MEMORY)
        tempfile.tempdir = None  # what was found before


_keep_files_in_memory()
# Messages name the interpreter as `python` where that is the one that runs.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
gc.disable()  # what is collected stays: searching it for garbage would take a third of the time
# Asserts are rewritten once and kept: else half of what it takes to collect the tests, in every process.
sys.dont_write_bytecode = False
forks.shorten_waits()
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # tests run beside each other: threads that spin take their CPUs
pytest.register_assert_rewrite("tests.support.listener_contract")
GPU = Device(
    kind="nvidia",
    uuid="GPU-11111111-2222-3333-4444-555555555555",
    name="NVIDIA H100 80GB HBM3",
    index=0,
    memory_mib=81559,
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--rewrite-golden` writes what a test found where it would have compared it; `--changed` selects tests."""
    parser.addoption("--rewrite-golden", action="store_true", help="write golden files anew instead of comparing")
    parser.addoption(
        "--changed", metavar="REVISION", help="only tests of what changed since this revision, and some smoke tests"
    )


HAS_TORCH = importlib.util.find_spec("torch") is not None
_HERE = Path(__file__).parent
# They import torch, which takes a process of the runner seconds and half a gigabyte before the first test.
_IMPORTING_TORCH = {
    _HERE / "unit/workloads" / f"test_{name}.py"
    for name in (
        "canary",
        "image_data",
        "infer",
        "stressor",
        "train_text",
        "train_timm",
    )
}


# Modules whose tests wait for servers, clusters and many studies in a row, most of the time.
_WAITING = {_HERE / "flow" / f"test_{name}.py" for name in ("slurm", "fail_everywhere", "server", "installed", "scale")}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave alone what imports torch where it is missing or none of it is to run, and what no change is about."""
    words = config.option.markexpr
    if collection_path == _HERE / "gpu" and (not HAS_TORCH or "not gpu" in words):
        return True
    if collection_path in _IMPORTING_TORCH and (not HAS_TORCH or "not slow" in words):
        return True
    if (revision := config.getoption("changed")) is None:
        return None
    return None if changed_rooms.may_be_about(collection_path, changed_rooms.changed_since(revision)) else True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what needs torch where it is not installed, as on the newest Python in `.ci/run`; mark what is slow."""
    _leave_cases_to_ci(items)
    for item in items:
        if item.path in _IMPORTING_TORCH:
            item.add_marker(pytest.mark.slow)
        if not HAS_TORCH and item.get_closest_marker("torch"):
            item.add_marker(pytest.mark.skip(reason="torch is not installed"))
    _spread_waiting_modules(items)
    if revision := config.getoption("changed"):
        changed = changed_rooms.changed_since(revision)
        unrelated = [item for item in items if not changed_rooms.is_about(item, changed)]
        config.hook.pytest_deselected(items=unrelated)
        items[:] = [item for item in items if item not in set(unrelated)]


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Search for garbage again, but not among what was collected: it stays until the end."""
    gc.freeze()
    gc.enable()


def _leave_cases_to_ci(items: list[pytest.Item]) -> None:
    """Mark cases of a test that is marked `sampled(N)` as slow, but for N that are spread evenly over its cases."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sampled") is not None and item.get_closest_marker("slow") is None:
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for family in cases.values():
        family.sort(key=_read_place)  # pytest-randomly has shuffled them: each run would have other cases
        (num_kept,) = next(family[0].iter_markers("sampled")).args
        default_cases = {index * len(family) // num_kept for index in range(num_kept)}
        for index, item in enumerate(family):
            if index not in default_cases:
                item.add_marker(pytest.mark.slow)


def _spread_waiting_modules(items: list[pytest.Item]) -> None:
    """Put the modules that wait for minutes first, each into the share of another worker, so that none begins last."""
    num_workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    waiting = [list(module) for _, module in itertools.groupby(items, lambda item: item.path)]
    waiting = sorted((module for module in waiting if module[0].path in _WAITING), key=len, reverse=True)
    ordered = [item for item in items if item.path not in _WAITING]
    for number, module in enumerate(waiting):
        start = len(ordered) * (number % num_workers) // num_workers
        ordered[start:start] = module
    items[:] = ordered


def _read_place(item: pytest.Item) -> list[int]:
    """Return the position of a case among those of its test, for each of its `parametrize` markers."""
    assert isinstance(item, pytest.Function)
    return list(item.callspec.indices.values())


def pytest_configure() -> None:
    """Hear signals, and let what tests start hear them: a shell in the background ignores Ctrl-C, `nohup` a hangup."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session")
def write_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], object]], Path]:
    """Let a function write a file or folder of this name once a run of pytest, whichever of its workers comes first.

    The path of what it wrote, which tests only read; the other workers wait for it.
    """
    base = tmp_path_factory.getbasetemp()
    common = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def path_of(name: str, write: Callable[[Path], object]) -> Path:
        path = common / name
        with locks.hold_lock(common / f"{name}.lock"):
            if not (common / f"{name}.made").exists():
                write(path)
                (common / f"{name}.made").touch()
        return path

    return path_of


@pytest.fixture(scope="session", autouse=True)
def _share_between_workers(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let one worker of this run compose a choice of groups for all, and import what programs of all workers do."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        experiments.share_with_other_workers(tmp_path_factory.getbasetemp().parent / "composed")
        forks.share_with_other_workers(tmp_path_factory.getbasetemp().parent)


@pytest.fixture
def sleeper() -> Iterator[int]:
    """Return the PID of a process that does nothing, as a process of somebody else."""
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process.pid
        process.kill()


@pytest.fixture
def compose() -> Callable[..., list[DictConfig]]:
    """Compose one configuration for each list of overrides, as a sweep does."""
    return lambda *overrides: [composed(words) for words in overrides]


@pytest.fixture
def make_plan(compose: Callable[..., list[DictConfig]]) -> Callable[..., Plan]:
    """Plan a study; `device` replaces what the machine has.

    One configuration is planned without its baselines, unless it is said whether it is of a sweep.
    """

    def make(*overrides: list[str], device: Device | None = None, is_sweep: bool | None = None) -> Plan:
        sweep = len(overrides) > 1 if is_sweep is None else is_sweep
        alone = ["baseline=never"] if is_sweep is None and not sweep and "baseline=" not in str(overrides) else []
        configs = config_reader.read(compose(*([*words, *alone] for words in overrides)))
        plan = planning.build_plan(configs, inventory_of(configs, device), is_sweep=sweep)
        return plan_builder.check_plan(plan)

    return make


def inventory_of(configs: list[Config], device: Device | None = None) -> Inventory:
    """What this machine has, with `device` in place of its own."""
    return take_inventory(configs, lambda gpu: device or cpu_device())


def sweep(**axes: list[object]) -> list[list[str]]:
    """The overrides of every combination, in the order in which Hydra expands them."""
    return [
        [f"{key}={value}" for key, value in zip(axes, values, strict=True)]
        for values in itertools.product(*axes.values())
    ]


TOYS, DATA = Path(__file__).parent / "toys", Path(__file__).parent / "data"
