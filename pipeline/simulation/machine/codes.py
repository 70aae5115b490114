"""The return codes of NVML and the texts that nvidia-smi prints for them."""

from __future__ import annotations

# Source: nvml.h (API 13), nvmlReturn_t.
SUCCESS = 0
UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION = 1, 2, 3, 4
NOT_FOUND, INSUFFICIENT_SIZE, RESET_REQUIRED, IN_USE, MEMORY = 6, 7, 16, 19, 20
INSUFFICIENT_RESOURCES, VERSION_MISMATCH = 23, 25
TEXTS = {
    UNINITIALIZED: "Uninitialized",
    INVALID_ARGUMENT: "Invalid Argument",
    NOT_SUPPORTED: "Not Supported",
    NO_PERMISSION: "Insufficient Permissions",
    NOT_FOUND: "Not Found",
    INSUFFICIENT_SIZE: "Insufficient Size",
    9: "Driver Not Loaded",
    15: "GPU is lost",
    RESET_REQUIRED: "GPU requires reset",
    IN_USE: "In use by another client",
    MEMORY: "Insufficient Memory",
    INSUFFICIENT_RESOURCES: "Insufficient Resources",
    VERSION_MISMATCH: "Argument version mismatch",
}


class DriverError(Exception):
    """A call that the driver refuses, with its NVML return code."""

    def __init__(self, code: int) -> None:
        super().__init__(text_of(code))
        self.code = code


def text_of(code: int) -> str:
    """Return the driver's text for a return code."""
    return TEXTS.get(code, "Unknown Error")
