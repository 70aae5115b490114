"""Names of MLflow experiments: rehearsals and reproductions have experiments of their own."""

from __future__ import annotations

from collections.abc import Iterable

from hydra.core.hydra_config import HydraConfig

from pipeline.plan.config_schema import Config, GpuKind

_REHEARSAL, _REPRODUCTIONS = "-rehearsal", "-reproductions"


def is_rehearsal(config: Config) -> bool:
    """Return whether the figures of a configuration mean nothing: of a simulated GPU, or small workloads."""
    is_small = HydraConfig.initialized() and "rehearse" in HydraConfig.get().runtime.choices
    return is_small or config.gpu.kind is GpuKind.simulated


def separate_rehearsals(configs: Iterable[Config]) -> None:
    """Let each configuration that is rehearsed record its results in the experiment `NAME-rehearsal`.

    A report reads one experiment: rehearsed and measured rows would stand beside each other, or push each other out.
    """
    for config in configs:
        if is_rehearsal(config):
            config.tracking.experiment = name_rehearsal(config.tracking.experiment)


def name_rehearsal(experiment: str) -> str:
    """Return the experiment for rehearsals of the studies of an experiment, which may be that one already."""
    return experiment.removesuffix(_REHEARSAL) + _REHEARSAL


def name_reproductions(experiment: str, *, is_rehearsed: bool) -> str:
    """Return the experiment for groups of an experiment that are run again, on a simulated GPU or on a real one."""
    studies = experiment.removesuffix(_REPRODUCTIONS).removesuffix(_REHEARSAL)
    return (name_rehearsal(studies) if is_rehearsed else studies) + _REPRODUCTIONS


def name_company(experiment: str) -> str:
    """Return the experiment for what keeps a GPU company: `NAME_company`, of a rehearsal `NAME_company-rehearsal`."""
    studies = experiment.removesuffix(_REHEARSAL)
    return f"{studies}_company{experiment[len(studies) :]}"
