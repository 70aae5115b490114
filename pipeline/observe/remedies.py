"""Remedies for failures that sharing a GPU causes and that the message of the program does not explain.

Sources: driver_types.h of CUDA 13 (errors 46 and 805 to 810), NCCL's init.cc, and the programs' messages.
"""

from __future__ import annotations

import re

_NUMBER = r"\b(?:CUDA|CUresult|MPS|cu[A-Z]\w+|cuda\w+)\b[^\d\n]{0,40}\b"
_REMEDIES = (
    (
        rf"{_NUMBER}805\b|cudaErrorMpsConnectionFailed|CUDA_ERROR_MPS_CONNECTION_FAILED|MPS client failed to connect",
        "the job found no MPS server: keep CUDA_MPS_PIPE_DIRECTORY in its environment, and run it as the user of the "
        "study, because a server serves one user",
    ),
    (
        rf"{_NUMBER}80[67]\b|cudaErrorMps(?:ServerNotReady|RpcFailure)|CUDA_ERROR_MPS_(?:SERVER_NOT_READY|RPC_FAILURE)|"
        "MPS server is not ready to accept|between the MPS server and the MPS client failed",
        "the MPS server ended or was recovering from the fault of another client: look for the first job that failed",
    ),
    (
        rf"{_NUMBER}80[89]\b|cudaErrorMpsMax|CUDA_ERROR_MPS_MAX_|required to (?:create MPS client|support device conn)",
        "MPS has no room for another client: run fewer jobs or processes, or lower CUDA_DEVICE_MAX_CONNECTIONS",
    ),
    (
        rf"{_NUMBER}810\b|cudaErrorMpsClientTerminated|CUDA_ERROR_MPS_CLIENT_TERMINATED|MPS client has been terminated",
        "the fault of another client under MPS ended this job too: look for the first job that failed",
    ),
    (
        r"(?:devices are|is/are) busy or unavailable|cudaErrorDevicesUnavailable|CUDA_ERROR_DEVICE_UNAVAILABLE",
        "another process holds the GPU in an exclusive compute mode, or the job bypassed MPS: end that process, "
        "keep CUDA_MPS_PIPE_DIRECTORY in the job, or change the mode: nvidia-smi -i GPU -c DEFAULT",
    ),
    (
        r"EADDRINUSE|Address already in use|another process is utilizing it",
        "another job or program holds this port: use MASTER_PORT, which differs between jobs, or {job}, as in "
        "--master-port 2951{job}",
    ),
    (
        r"Duplicate GPU detected",
        "NCCL accepts one rank per GPU: run each job with one process, or its ranks with another backend such as gloo",
    ),
    (
        r"invalid literal for int\(\).*MIG-|could not convert string.*MIG-",
        "the program reads CUDA_VISIBLE_DEVICES as numbers, but a MIG device has only a UUID: let it use device 0 of "
        "those that it sees",
    ),
)


def find_remedy(reason: str) -> str:
    """Return the remedy for a failure; empty if its reason has nothing to do with sharing a GPU."""
    return next((remedy for pattern, remedy in _REMEDIES if re.search(pattern, reason)), "")
