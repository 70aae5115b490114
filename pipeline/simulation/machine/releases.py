"""The driver releases that a simulated machine can have."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A driver release.

    `cuda_version` has NVML's format (12040 is 12.4), and is also the version of the MPS control program.
    """

    driver_version: str
    cuda_version: int


RELEASES = {
    "535": Release(driver_version="535.309.01", cuda_version=12020),
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
