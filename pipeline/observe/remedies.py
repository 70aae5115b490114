"""Remedies for failures that sharing a GPU causes and that the message of the program does not explain.

Sources: driver_types.h of CUDA 13 (errors 805 to 810), NCCL's init.cc, and the programs' messages.
"""

from __future__ import annotations

import re

_REMEDIES = (
    (
        r"cudaErrorMpsConnectionFailed|CUDA_ERROR_MPS_CONNECTION_FAILED|MPS client failed to connect",
        "the job found no MPS server: keep CUDA_MPS_PIPE_DIRECTORY in its environment, and run it as the user of the "
        "study, because a server serves one user",
    ),
    (
        r"cudaErrorMpsServerNotReady|CUDA_ERROR_MPS_SERVER_NOT_READY|MPS server is not ready to accept",
        "the MPS server was recovering from the fault of another client: look for the first job that failed",
    ),
    (
        r"cudaErrorMpsRpcFailure|CUDA_ERROR_MPS_RPC_FAILURE|between the MPS server and the MPS client failed",
        "the MPS server ended while the job ran: look for the first job that failed",
    ),
    (
        r"cudaErrorMpsMaxClientsReached|CUDA_ERROR_MPS_MAX_CLIENTS_REACHED|create MPS client have been exhausted",
        "MPS has no room for another client: run fewer jobs or processes",
    ),
    (
        r"cudaErrorMpsClientTerminated|CUDA_ERROR_MPS_CLIENT_TERMINATED|MPS client has been terminated by the server",
        "the fault of another client under MPS ended this job too: look for the first job that failed",
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
