"""This machine and who uses it: its CPUs, its boot, the user."""

from __future__ import annotations

import getpass
import os
import platform
from pathlib import Path

from pipeline.base.records import Device

BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")


def user_name() -> str:
    """Who runs this process: a name if the system knows one, else the number (as in many containers)."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def boot_id() -> str:
    """Changes with every boot of the machine; empty where the system has none."""
    try:
        return BOOT_ID_FILE.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def cpu_device() -> Device:
    """The CPUs of this machine as a device."""
    return Device(kind="cpu", uuid=f"CPU-{platform.node()}", name=_cpu_model())


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
