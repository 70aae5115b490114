"""What is refused before anything is touched. Pure: it looks at values, not at the machine."""

from __future__ import annotations

import math

from pipeline.errors import ConfigError
from pipeline.schema import (
    Config,
    Dataset,
    DataSource,
    GpuConfig,
    GpuKind,
    Precision,
    StepMode,
    TrainTimmConfig,
    WorkloadConfig,
)
from pipeline.types import MIN_INTERVAL_MS, Device

_MAX_SEED = 2**32 - 1
# Variables that only the orchestrator sets. One that hides a job from MPS may be given: its group fails and says so.
_OURS = frozenset({"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"})
_OUR_PREFIX = "COLLOCATION_"
# Training on images of this size is hours an epoch on CPUs: nobody means it who did not say so.
_GPU_ONLY_PX = 224
_STORED_PX = {Dataset.cifar10: 32, Dataset.imagenet64: 64}


def settings(config: Config) -> None:
    """Refuse numbers that no study can run with.

    Raises:
        ConfigError: names the key, its value and what it must be.
    """
    positive = {
        "repeats": config.repeats,
        "window.seconds": config.window.seconds,
        "window.epochs": config.window.epochs,
        "limits.ready_s": config.limits.ready_s,
        "limits.group_s": config.limits.group_s,
        "limits.stop_s": config.limits.stop_s,
        "tracking.series_points": config.tracking.series_points,
        "time_limit_s": config.time_limit_s,
    }
    for key, value in positive.items():
        if value is not None and not 0 < value < math.inf:
            raise ConfigError(f"{key}={value}: must be greater than 0, and finite")
    for key, value in {"window.settle_s": config.window.settle_s, "seed": config.seed}.items():
        if not 0 <= value < math.inf:
            raise ConfigError(f"{key}={value}: must not be negative, and finite")
    if config.seed > _MAX_SEED:
        raise ConfigError(f"seed={config.seed}: must not be greater than {_MAX_SEED}, the largest that libraries take")
    _names(config)
    for name, listener in config.listeners.items():
        if listener.interval_ms < MIN_INTERVAL_MS:
            raise ConfigError(
                f"listeners.{name}.interval_ms={listener.interval_ms}: the shortest interval is {MIN_INTERVAL_MS} ms, "
                "because sampling faster would disturb what is measured"
            )

    if config.gpu.kind is GpuKind.simulated:
        _rehearsal(config)
    else:
        default = GpuConfig()
        for key in ("count", "machine"):
            if (value := getattr(config.gpu, key)) != getattr(default, key):
                raise ConfigError(f"gpu.{key}={value} is for simulated GPUs: choose one, as gpu=simulated_a100_40gb")


def _names(config: Config) -> None:
    names = {
        "tracking.root": (config.tracking.root, "the folder of the store and of the spool"),
        "tracking.experiment": (config.tracking.experiment, "the MLflow experiment that takes the results a name"),
    }
    for key, (value, what) in names.items():
        if not value.strip():
            raise ConfigError(f"{key} is empty: give {what}")


def _rehearsal(config: Config) -> None:
    """Refuse what a simulated GPU cannot do, and what could reach a real program."""
    if config.gpu.job_memory_mib < 1:
        raise ConfigError(f"gpu.job_memory_mib={config.gpu.job_memory_mib}: must be at least 1")
    programs = {
        f"listeners.{name}.options.program": each.options.get("program") for name, each in config.listeners.items()
    }
    for key in ("program", "mps_program"):
        programs[f"scenario.{key}"] = getattr(config.scenario, key, None)
    for key, program in programs.items():
        if program is not None:
            raise ConfigError(
                f"{key}={program}: a simulated GPU has its own programs and never uses another; leave it out"
            )


def workload(chosen: WorkloadConfig, config: Config, device: Device) -> None:
    """Refuse a workload that cannot run on the device, or whose settings exclude each other.

    Raises:
        ConfigError: says what to change.
    """
    _variables(chosen)
    if isinstance(chosen, TrainTimmConfig):
        _training(chosen, config, device)


def _variables(chosen: WorkloadConfig) -> None:
    for key in chosen.environ:
        if key in _OURS or key.startswith(_OUR_PREFIX):
            raise ConfigError(
                f"workload {chosen.name}: environ.{key} cannot be given: it decides which device a job sees, or to "
                "which group it belongs, and the scenario sets it"
            )


def _training(chosen: TrainTimmConfig, config: Config, device: Device) -> None:
    for key in ("batch_size", "image_px", "num_classes", "samples", "threads"):
        value = getattr(chosen, key)
        if value is not None and value < 1:
            raise ConfigError(f"workload {chosen.name}: {key}={value} must be at least 1")
    for key in ("loader_workers", "warmup_steps"):
        if getattr(chosen, key) < 0:
            raise ConfigError(f"workload {chosen.name}: {key}={getattr(chosen, key)} must not be negative")
    if _STORED_PX.get(chosen.dataset, chosen.image_px) > chosen.image_px:
        raise ConfigError(
            f"workload {chosen.name}: the images of {chosen.dataset.name} have {_STORED_PX[chosen.dataset]} "
            f"pixels and are scaled up only, not to image_px={chosen.image_px}"
        )
    if chosen.samples is not None and chosen.source is DataSource.disk:
        raise ConfigError(f"workload {chosen.name}: samples is for synthetic data; a data set on disk is used whole")
    if chosen.step_mode is StepMode.cuda_graph and (not device.is_gpu or device.is_simulated):
        where = f"a simulated {device.name}" if device.is_simulated else device.name
        raise ConfigError(
            f"workload {chosen.name}: step_mode=cuda_graph needs a GPU, and this study runs on {where}; "
            "+rehearse=tiny rehearses an experiment without one"
        )
    if chosen.step_mode is StepMode.cuda_graph and chosen.precision is Precision.fp16:
        raise ConfigError(
            f"workload {chosen.name}: step_mode=cuda_graph cannot be combined with precision=fp16, whose loss "
            "scaling reads the device in every step; use bf16"
        )
    if chosen.image_px >= _GPU_ONLY_PX and not device.is_gpu and config.gpu.kind is GpuKind.auto:
        raise ConfigError(
            f"workload {chosen.name} trains on {chosen.image_px}-pixel images and no GPU was found; "
            "say gpu=cpu if you mean to do that on CPUs"
        )
