"""A stand-in for `nvidia-cuda-mps-server`, which speaks to a real control program as a server without clients does.

The real server exits at once on a machine without a GPU. The messages were recorded between the server and the control
program of 580.178.04; programs of R535 to R615 take them. Standard library only.
"""

import os
import socket
import struct

_READY = _ACTIVE = 1
_NUMBER = struct.Struct("i")


def serve() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as control:
        control.connect(os.path.join(os.environ["CUDA_MPS_PIPE_DIRECTORY"], "control"))
        control.recv(16)  # OUTBHELL
        credentials = struct.pack("3i", os.getpid(), os.getuid(), os.getgid())
        control.sendmsg([b"OUTBCRED\0"], [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, credentials)])
        control.send(_NUMBER.pack(_READY))
        for _ in range(int(os.environ["MPS_SERVER_ZEROS"])):
            control.send(_NUMBER.pack(0))
        while message := control.recv(4096):
            if len(message) != _NUMBER.size:
                continue  # a setting: percentage, memory limit of a device, priority
            match _NUMBER.unpack(message)[0]:
                case 5:  # shut down
                    return
                case 6:  # list clients
                    control.send(_NUMBER.pack(0))  # number of clients
                case 17:  # status
                    control.send(_NUMBER.pack(_ACTIVE))


if __name__ == "__main__":
    serve()
