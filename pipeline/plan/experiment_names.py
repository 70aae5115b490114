"""Names of MLflow experiments: rehearsals and reproductions have separate experiments."""

from __future__ import annotations

from collections.abc import Iterable

from hydra.core.hydra_config import HydraConfig

from pipeline.base.domain.layout import REHEARSAL
from pipeline.plan.config_schema import Config, GpuKind

_REPRODUCTIONS = "-reproductions"


def is_rehearsal(config: Config) -> bool:
    """Return whether a configuration rehearses (simulated GPU or small workloads); its figures are meaningless."""
    is_small = HydraConfig.initialized() and "rehearse" in HydraConfig.get().runtime.choices
    return is_small or config.gpu.kind is GpuKind.simulated


def separate_rehearsals(configs: Iterable[Config]) -> None:
    """Set the experiment of each rehearsal to `NAME-rehearsal`.

    A report reads one experiment, in which rehearsed rows would mix with measured rows or replace them.
    """
    for config in configs:
        if is_rehearsal(config):
            config.tracking.experiment = name_rehearsal(config.tracking.experiment)


def name_rehearsal(experiment: str) -> str:
    """Return the experiment for rehearsals of an experiment's studies; return a rehearsal's name unchanged."""
    return experiment.removesuffix(REHEARSAL) + REHEARSAL


def name_reproductions(experiment: str, *, is_rehearsed: bool) -> str:
    """Return the experiment for reproductions of an experiment's groups, on a simulated or a real GPU."""
    studies = experiment.removesuffix(_REPRODUCTIONS).removesuffix(REHEARSAL)
    return (name_rehearsal(studies) if is_rehearsed else studies) + _REPRODUCTIONS


def name_company(experiment: str) -> str:
    """Return the experiment for load on other GPUs: `NAME_company`, or `NAME_company-rehearsal` for a rehearsal."""
    studies = experiment.removesuffix(REHEARSAL)
    return f"{studies}_company{experiment[len(studies) :]}"
