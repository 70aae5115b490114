"""The driver releases that a simulated machine can have."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A driver release.

    Attributes:
        cuda_version: version of CUDA in NVML's format (12040 is 12.4), and of the MPS control program.
        missing_calls: functions that the simulated NVML has, but NVML of this release does not. Tests compare them with
            the libraries of 535.309.01 and 550.163.01. The options of nvidia-smi that this project uses are the same in
            535.309.01, 550.163.01, 580.178.04, 595.99.02 and 615.71.09.
    """

    driver_version: str
    cuda_version: int
    missing_calls: frozenset[str] = frozenset()


RELEASES = {
    "535": Release(
        driver_version="535.309.01",
        cuda_version=12020,
        missing_calls=frozenset({"nvmlDeviceGetProcessesUtilizationInfo"}),
    ),
    "550": Release(driver_version="550.163.01", cuda_version=12040),
    "570": Release(driver_version="570.133.20", cuda_version=12080),
    "580": Release(driver_version="580.159.04", cuda_version=13000),
    "590": Release(driver_version="590.48.01", cuda_version=13010),
    "595": Release(driver_version="595.99.02", cuda_version=13020),
    "615": Release(driver_version="615.71.09", cuda_version=13040),
}
"""Releases by branch. Most behaviour was recorded with driver 580; other branches have other versions and MPS
commands."""
RECORDED = "580"
