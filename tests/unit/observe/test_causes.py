"""Why a program failed is its own error, and not the footer of what started it; out of memory in all its words."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.observe import causes
from pipeline.observe.causes import Cause

RECORDED = Path(__file__).resolve().parents[2] / "data" / "failed_programs"
TRACE = 'Traceback (most recent call last):\n  File "t.py", line 5, in main\n    train()\n'
FAILED = f"{TRACE}ValueError: bad learning rate\n"
CUDA_OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.15 GiB. "
    "If reserved but unallocated memory is large try setting expandable_segments:True to avoid fragmentation.\n"
)
OF_TORCHRUN = (
    f"E0102 10:00:00.123 12 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) local_rank: 0\n"
    f"{TRACE}torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n{'=' * 60}\nt.py FAILED\n{'-' * 60}\n"
    f"Failures:\n  <NO_OTHER_FAILURES>\n{'-' * 60}\nRoot Cause (first observed failure):\n[0]:\n  time      : 2024\n"
    "  host      : h\n  rank      : 0 (local_rank: 0)\n  exitcode  : 1 (pid: 1)\n  error_file: <N/A>\n"
    f"  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html\n{'=' * 60}\n"
)
OF_WANDB = (
    "\x1b[1;34mwandb\x1b[0m: \nwandb: Run history:\nwandb: loss \u2588\u2581\nwandb: Find logs at: ./wandb/run-1/logs\n"
)
OF_HYDRA = "\nSet the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.\n"
OF_LIGHTNING = (
    "\rEpoch 0:   1%|          | 1/100 [00:01<?, ?it/s]\n[rank: 1] Child process with PID 12 terminated with code 1. "
    "Forcefully terminating all other processes to avoid zombies\nKilled\n"
)
OF_MPI = (
    f"{'-' * 70}\nPrimary job  terminated normally, but 1 process returned\n"
    "a non-zero exit code. Per user-direction, the job has been aborted.\n"
    f"{'-' * 70}\nmpirun detected that one or more processes exited with non-zero status, thus causing\n"
    "the job to be terminated. The first process to do so was:\n\n  Process name: [[1,1],0]\n  Exit code:    1\n"
)
OF_DEEPSPEED = (
    "[2024-01-01 00:00:00,000] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 123\n"
    "[2024-01-01 00:00:00,000] [ERROR] [launch.py:325:sigkill_handler] ['python', 't.py'] exits with return code = 1\n"
)
OF_ACCELERATE = f"{TRACE}subprocess.CalledProcessError: Command '['python', 't.py']' returned non-zero exit status 1.\n"
OF_TRACKER = (
    "/usr/lib/python3.11/multiprocessing/resource_tracker.py:224: UserWarning: resource_tracker: There appear to be 6 "
    "leaked semaphore objects to clean up at shutdown\n  warnings.warn('resource_tracker: There appear to be %d '\n"
)
FOOTERS = {
    "torchrun": OF_TORCHRUN,
    "wandb": OF_WANDB,
    "Hydra": OF_HYDRA,
    "Lightning": OF_LIGHTNING,
    "MPI": OF_MPI,
    "deepspeed": OF_DEEPSPEED,
    "accelerate": OF_ACCELERATE,
    "tracker": OF_TRACKER,
    "Slurm": "srun: error: n01: task 0: Exited with exit code 1\n",
    "make": "make: *** [Makefile:3: train] Error 1\n",
    "shell": "training failed, see above\n",
    "log": "INFO:root:closing files\nINFO:root:bye\n",
    "destructor": f"Exception ignored in: <function A.__del__>\n{TRACE}OSError: of a destructor\n",
    "Hydra and wandb": OF_HYDRA + OF_WANDB,
    "torchrun and Slurm": f"{OF_TORCHRUN}srun: error: n01: task 0: Exited with exit code 1\n",
}


@pytest.fixture
def judge(tmp_path):
    """What is made of error output and output."""

    def of(stderr: str, stdout: str = "") -> Cause:
        (tmp_path / "stderr.log").write_text(stderr, encoding="utf-8", newline="")
        (tmp_path / "stdout.log").write_text(stdout, encoding="utf-8", newline="")
        return causes.judge_output(tmp_path / "stderr.log", tmp_path / "stdout.log")

    return of


@pytest.mark.parametrize(
    ("program", "text", "is_oom"),
    [
        ("torchrun", "ValueError: bad learning rate", False),
        ("torchrun_tee", "ValueError: bad learning rate", False),
        ("torchrun_record", "ValueError: bad learning rate", False),
        ("torchrun_one_of_two_ranks", "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB", True),
        (
            "torchrun_killed",
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: a rank ended with -9 (pid: 13015) "
            "(SIGKILL)",
            False,
        ),
        ("hydra", "RuntimeError: training failed, from ValueError: bad learning rate", False),
        ("spawn", "ValueError: bad learning rate", False),
        ("pool", "ValueError: bad learning rate", False),
        ("data_loader", "ValueError: bad learning rate", False),
        (
            "data_loader_killed",
            "RuntimeError: DataLoader worker (pid(s) 13408) exited unexpectedly, "
            "from RuntimeError: DataLoader worker (pid 13408) is killed by signal: Killed.",
            False,
        ),
        (
            "groups_in_a_chain",
            "RuntimeError: training failed, from ExceptionGroup: outer (2 sub-exceptions): ValueError: bad learning "
            "rate; ExceptionGroup: inner (2 sub-exceptions): OSError: [Errno 12] Cannot allocate memory; KeyError: 'x'",
            True,
        ),
        (
            "while_handling",
            "FileNotFoundError: [Errno 2] No such file or directory: '/nonexistent/checkpoint', from MemoryError: "
            "Unable to allocate 7.28 TiB for an array with shape (1,) and data type float64",
            True,
        ),
        ("rich", "ValueError: bad learning rate with a very long explanation of why it is so with", False),
        ("thread", "ValueError: bad learning rate", False),
        ("destructor_and_exit", "ValueError: bad learning rate", False),
        ("tqdm", "ValueError: bad learning rate", False),
        ("time_v", "ValueError: bad learning rate", False),
        ("bad_alloc", "std::bad_alloc", True),
    ],
)
def test_what_real_programs_wrote_names_their_error(program, text, is_oom):
    cause = causes.judge_output(RECORDED / f"{program}.txt", RECORDED / "nothing")
    assert (cause.text, cause.is_oom, cause.has_kill) == (text, is_oom, "killed" in program)


@pytest.mark.parametrize("footer", FOOTERS.values(), ids=FOOTERS)
def test_below_every_footer_the_error_is_found(judge, footer):
    failed = judge(FAILED + footer)
    assert (failed.text, failed.is_oom) == ("ValueError: bad learning rate", False)
    of_memory = judge(f"{TRACE}{CUDA_OOM}{footer}")
    assert of_memory.is_oom and of_memory.text == CUDA_OOM.strip()


def test_a_footer_that_is_all_there_is_is_said(judge):
    said = "wandb: ERROR api_key not configured (no-tty). call wandb.login(key=[your_api_key])"
    assert judge(f"{said}\nwandb: Find logs at: x\n") == Cause(said)
    assert judge("") == judge("=====\n\n-----\n") == Cause()


OF_RAY = (
    f"{TRACE}ray.exceptions.RayTaskError(ValueError): \x1b[36mray::train()\x1b[39m (pid=1, ip=10.0.0.1)\n"
    '  File "t.py", line 5, in train\n    x()\nValueError: bad learning rate\n'
)
OF_IPYTHON = (
    f"{'-' * 75}\nValueError                                Traceback (most recent call last)\nCell In[1], line 1\n"
    "----> 1 raise ValueError('bad learning rate')\n\nValueError: bad learning rate\n"
)
OF_LOGURU = (
    "2024-01-01 00:00:00.000 | ERROR    | __main__:<module>:5 - An error has been caught in process 'MainProcess':\n"
    'Traceback (most recent call last):\n\n> File "t.py", line 5, in <module>\n    main()\n    \u2514 <main>\n\n'
    "ValueError: bad learning rate\n"
)
COLOURED = (
    '\x1b[31mTraceback (most recent call last):\x1b[0m\n  File \x1b[35m"t.py"\x1b[0m, line \x1b[35m5\x1b[0m\n'
    "\x1b[1;35mValueError\x1b[0m: \x1b[35mbad learning rate\x1b[0m\n"
)


def prefixed(prefix: str, text: str) -> str:
    return "".join(f"{prefix}{line}\n" for line in text.splitlines())


@pytest.mark.parametrize(
    "text",
    [
        OF_RAY,
        OF_IPYTHON,
        OF_LOGURU,
        COLOURED,
        f"{TRACE}papermill.exceptions.PapermillExecutionError: \n{'-' * 75}\nException in [1]:\n{OF_IPYTHON}",
        f"  0%|    | 0/10 [00:00<?, ?it/s]\r 50%|#   | 5/10 [00:00<00:00, 9.99it/s]{FAILED}\r 50%|#   | 5/10 [00:00<?]",
        *(
            prefixed(prefix, FAILED)
            for prefix in ("[rank0]: ", "[1,0]<stderr>:", "0: ", "worker-1  | ", "(train pid=12) ")
        ),
        prefixed("2024-11-20T14:37:16.123Z [rank3]: ", FAILED),
        prefixed("host1: ", FAILED),
        FAILED.replace("\n", "\r\n"),
        f"cut off\n{FAILED.partition(chr(10))[2]}",
        f"{FAILED}a note of PEP 678\n",
    ],
)
def test_the_exception_is_found_in_every_form(judge, text):
    assert judge(text).text == judge("", text).text == "ValueError: bad learning rate"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("first words\n\nthe last words\n", "the last words"),
        ("usage: t.py [-h]\nt.py: error: unrecognized arguments: --lr\n", "t.py: error: unrecognized arguments: --lr"),
        ("Usage: t.py\n\nError: Invalid value for '--lr': 'x'.\n", "Error: Invalid value for '--lr': 'x'."),
        (
            '  File "t.py", line 1\n    def f(:\n          ^\nSyntaxError: invalid syntax\n',
            "SyntaxError: invalid syntax",
        ),
        (
            "Fatal Python error: Segmentation fault\n\nCurrent thread 0x1:\n  File t.py\n",
            "Fatal Python error: Segmentation fault",
        ),
        (f"{TRACE}__main__.Diverged: loss is nan at step 3\n", "__main__.Diverged: loss is nan at step 3"),
        (f"{TRACE}app.ValidationError: 2 errors\nlr\n  not a number\n", "app.ValidationError: 2 errors"),
        (f"{TRACE}RuntimeError: Loading failed:\n\nno such layer\n", "RuntimeError: Loading failed: no such layer"),
        (
            "thread 'main' panicked at src/main.rs:2:5:\nindex out of bounds\n",
            "thread 'main' panicked at src/main.rs:2:5: index out of bounds",
        ),
    ],
)
def test_other_ends_are_said_in_a_line(judge, text, said):
    assert judge(text) == Cause(said)


def test_of_several_ranks_the_first_to_fail_counts_and_not_those_that_lost_their_connection(judge):
    second = f"{TRACE}RuntimeError: [../third_party/gloo/pair.cc:534] Connection closed by peer [127.0.0.1]:1\n"
    ranks = prefixed("[rank0]: ", FAILED) + prefixed("[rank1]: ", second)
    assert (
        judge(ranks + OF_TORCHRUN).text == judge(FAILED + second + OF_TORCHRUN).text == "ValueError: bad learning rate"
    )
    assert judge(prefixed("[rank1]: ", second) + prefixed("[rank0]: ", TRACE + CUDA_OOM)).is_oom


OUT_OF_MEMORY = [
    "MemoryError",
    "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 214748 bytes.",
    "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Failed to allocate request for 16.00GiB on device ordinal 0",
    "tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor with shape[256,64]",
    "tensorflow.python.framework.errors_impl.InternalError: to run _EagerConst: Dst tensor is not initialized.",
    'CUDA error at main.cu:10 code=2(cudaErrorMemoryAllocation) "cudaMalloc(&p, n)"',
    "GPUassert: out of memory main.cu 12",
    "cuda failed with error 2 out of memory. use CUDA_LAUNCH_BLOCKING=1 to get correct traceback.",
    "numba.cuda.cudadrv.driver.CudaAPIError: [2] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY",
    "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 8,000,000,000 bytes (allocated so far: 0 bytes).",
    "RuntimeError: CUDA out of memory. Tried to allocate 1024.00 MiB (GPU 0; 15.90 GiB total capacity)",
    "torch.cuda.OutOfMemoryError: HIP out of memory. Tried to allocate 20.00 MiB.",
    "hipErrorOutOfMemory (2) at main.cpp:10",
    "RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 40000000000000 bytes.",
    "RuntimeError: DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes.",
    "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 7.28 TiB for an array with shape (1000000, 1000000)",
    "OSError: [Errno 12] Cannot allocate memory",
    "pyarrow.lib.ArrowMemoryError: malloc of size 123 failed",
    "onnxruntime.RuntimeException: bfc_arena.cc:376 Failed to allocate memory for requested buffer of size 123",
    "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`.",
    "mxnet.base.MXNetError: pooled_storage_manager.h:161: cudaMalloc retry failed: out of memory",
    CUDA_OOM.strip(),
]


@pytest.mark.parametrize("error", OUT_OF_MEMORY)
def test_out_of_memory_in_the_words_of_each_library(judge, error):
    forms = [error, f"{error}\n", f"starting\n{error}\nExiting.\n", f"{error}\n{OF_ACCELERATE}"]
    is_exception = error.partition(":")[0].endswith("Error")
    for text in (*forms, *([TRACE + error, f"{TRACE}{error}\n{OF_TORCHRUN}"] if is_exception else [])):
        assert judge(text) == judge("", text) == Cause(error, is_oom=True), text


@pytest.mark.parametrize(
    "text",
    [
        "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\nAborted",
        "terminate called after throwing an instance of 'thrust::detail::bad_alloc'\n  what():  std::bad_alloc: x",
        "terminate called after throwing an instance of 'c10::OutOfMemoryError'\n  what():  CUDA out of memory\n"
        "Exception raised from malloc at x.cpp:1 (most recent call first):\nframe #0: c10::Error::Error()\n",
        "terminate called after throwing an instance of 'paddle::memory::allocation::BadAlloc'\n  what():  \n\n------\n"
        "C++ Traceback (most recent call last):\n------\n0   scale_ad_func(paddle::experimental::Tensor const&)\n",
        "libc++abi: terminating due to uncaught exception of type std::bad_alloc: std::bad_alloc",
        f"{TRACE}RuntimeError: ResourceExhaustedError: \n\nOut of memory error on GPU 0. Cannot allocate 9MB.\n\n"
        "Please check whether there is any other process using GPU 0.\n1. If yes, please stop them.\n"
        "2. If no, please decrease the batch size of your model.\n",
        f"{TRACE}DistBackendError: NCCL error in: x.cpp:1, cuda error\nLast error:\nfailure 2 'out of memory'",
        f"{TRACE}errors_impl.ResourceExhaustedError: Graph execution error:\n\nDetected at node 'conv' defined at ("
        "most recent call last):\n    File \"t.py\", line 3\nNode: 'conv'\nOOM when allocating tensor\n\t [[{node}]]\n",
        "ggml_backend_cuda: allocating 4096.00 MiB on device 0: cudaMalloc failed: out of memory\n"
        "llama_model_load: error loading model: unable to allocate CUDA0 buffer\nmain: error: unable to load model\n",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=123.0. Some of the step tasks have been OOM Killed.\n",
        'Exception in thread "main" java.lang.OutOfMemoryError: Java heap space\n\tat Main.main(Main.java:5)\n',
        "ERROR: LoadError: Out of GPU memory trying to allocate 1.000 GiB\nEffective usage: 99.9%\nStacktrace:\n [1]\n",
        "Error: cannot allocate vector of size 3.7 Gb\nExecution halted\n",
        "fatal error: runtime: out of memory\n\nruntime stack:\nruntime.throw(0x1)\n\t/usr/x.go:1\n",
        "memory allocation of 123456789 bytes failed\nAborted",
        f"{TRACE}{CUDA_OOM}\nThe above exception was the direct cause of the following exception:\n\n{FAILED}",
        f"{TRACE}{CUDA_OOM}\nDuring handling of the above exception, another exception occurred:\n\n{FAILED}",
        f"{TRACE}{CUDA_OOM}{prefixed('|  ', 'a table of memory ' * 30)}",
    ],
)
def test_out_of_memory_over_several_lines(judge, text):
    assert judge(text).is_oom and judge("", text).is_oom


STEPS = "".join(f"step {number} loss 0.{number}\n" for number in range(3))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"WARNING: CUDA out of memory, retrying with batch size 16\n{STEPS}{FAILED}", "ValueError: bad learning rate"),
        ("WARNING: CUDA out of memory, retrying with batch size 16\nbad learning rate\n", "bad learning rate"),
        (f"GPU ran out of memory at batch size 64\n{STEPS}error: no such file: /data\n", "error: no such file: /data"),
        (f"GPU ran out of memory at batch size 64\n{STEPS}", "step 2 loss 0.2"),
        ("CUDA out of memory at batch size 64\nValueError: bad learning rate\n", "ValueError: bad learning rate"),
        ("CUDA out of memory at batch size 64\nerror: cannot open x: no such file\n", "error: cannot open x"),
        (f"{TRACE}{CUDA_OOM}retrying with batch size 16\n{FAILED}", "ValueError: bad learning rate"),
        (f"{TRACE}{CUDA_OOM}{STEPS}bad learning rate\n", "bad learning rate"),
        (f"{TRACE}{CUDA_OOM}reducing the batch size to 16\n", "reducing the batch size to 16"),
        (f"{TRACE}{CUDA_OOM}" + "".join(f"loss {number}\n" for number in range(40)), "loss 39"),
        (f"{FAILED}\nTip: if you run out of memory, reduce the batch size\n", "ValueError: bad learning rate"),
        ("note: set X to avoid out of memory errors\nt.py: error: --lr is missing\n", "t.py: error: --lr is missing"),
        (
            "2024-01-01 00:00:00.1: I tensorflow/x.cc:1] failed to allocate 10.0G: CUDA_ERROR_OUT_OF_MEMORY: x\n"
            + FAILED,
            "ValueError: bad learning rate",
        ),
        (f"{TRACE}KeyError: 'out of memory'", "KeyError: 'out of memory'"),
        (f"{TRACE}FileNotFoundError: [Errno 2] No such file or directory: 'out of memory.txt'", "FileNotFoundError"),
        (f"{TRACE}OSError: [Errno 28] No space left on device", "OSError: [Errno 28] No space left on device"),
        (
            f"{TRACE}errors_impl.ResourceExhaustedError: /ckpt/x; No space left on device",
            "errors_impl.ResourceExhaustedError",
        ),
        (
            f"{TRACE}grpc.RpcError: StatusCode.RESOURCE_EXHAUSTED: Received message larger than max (5 vs. 4)",
            "grpc.RpcError",
        ),
        (
            f"{TRACE}google.api_core.exceptions.ResourceExhausted: 429 Quota exceeded for quota metric",
            "google.api_core",
        ),
        (
            f"{TRACE}RuntimeError: CUDA error: an illegal memory access was encountered",
            "RuntimeError: CUDA error: an illegal",
        ),
        (
            f"{TRACE}triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 106496",
            "triton.runtime",
        ),
        (
            f"{TRACE}RuntimeError: DataLoader worker (pid 1) is killed by signal: Bus error. It is possible that "
            "dataloader's workers are out of shared memory.",
            "RuntimeError: DataLoader worker",
        ),
    ],
)
def test_a_mention_of_memory_is_not_the_cause_of_another_failure(judge, text, said):
    for cause in (judge(text), judge(text, "out of memory once, going on\nstep 1\n")):
        assert not cause.is_oom and cause.text.startswith(said), cause


def test_output_tells_where_error_output_does_not(judge):
    warning = "/venv/x.py:3: UserWarning: deprecated\n  warnings.warn('deprecated')\n"
    assert judge(warning, "begin\nCUDA error: out of memory\n") == Cause("CUDA error: out of memory", is_oom=True)
    assert judge("error: bad learning rate\n", "CUDA error: out of memory\n") == Cause("error: bad learning rate")
    assert judge(warning, f"{STEPS}").text.startswith("/venv/x.py")


def test_a_reported_exception_has_its_chain_and_one_line():
    trace = f"{TRACE}{CUDA_OOM}\nThe above exception was the direct cause of the following exception:\n\n{FAILED}"
    told = causes.judge_exception("ValueError", "bad learning rate\nof two lines", trace)
    assert told.is_oom and told.text == f"ValueError: bad learning rate, from {CUDA_OOM.strip()[:200]}"
    assert causes.judge_exception("RuntimeError", "CUDNN_STATUS_ALLOC_FAILED").is_oom
    assert causes.judge_exception("MemoryError", "") == Cause("MemoryError", is_oom=True)
    assert causes.judge_exception("KeyError", "'out of memory'") == Cause("KeyError: 'out of memory'")
    assert len(causes.judge_exception("ValueError", "x" * 4000).text) == 500


@pytest.mark.parametrize(
    "text",
    [
        TRACE * 3000,
        FAILED * 3000,
        f"{FAILED}\nDuring handling of the above exception, another exception occurred:\n\n" * 1500,
        "  + Exception Group Traceback (most recent call last):\n  | ExceptionGroup: x\n  +-+---------------- 1 -----\n"
        * 1500,
        "".join(
            f"{' ' * (2 + 2 * depth)}| Traceback (most recent call last):\n{' ' * (2 + 2 * depth)}| ExceptionGroup: x\n"
            for depth in range(800)
        ),
        "out of memory " * 20_000,
        "\x1b[" * 100_000,
        " " * 300_000,
        "5%|" * 100_000,
    ],
    ids=range(9),
)
def test_whatever_a_program_writes_is_looked_at_in_bounded_time(judge, text):
    cause = judge(text)
    assert len(cause.text) <= 500 and "\x1b" not in cause.text


def test_a_line_tells_that_the_program_goes_on():
    assert causes.is_recovery("CUDA out of memory. Retrying with half of it")
    assert not causes.is_recovery("CUDA out of memory. Try reducing batch_size")
    assert causes.is_memory_line("CUDA out of memory. Try reducing batch_size")


@pytest.mark.parametrize(
    ("printed", "remedy"),
    [
        (
            "torch.AcceleratorError: CUDA error: MPS client failed to connect to the MPS control daemon",
            "the job found no MPS server: keep CUDA_MPS_PIPE_DIRECTORY",
        ),
        (
            "RuntimeError: MPS server is not ready to accept new MPS client requests",
            "the MPS server ended or was recovering from the fault of another client",
        ),
        ("RuntimeError: MPS client has been terminated by the server", "the fault of another client under MPS"),
        ("cudaErrorMpsRpcFailure: remote call", "the MPS server ended or was recovering"),
        ("CUDA_ERROR_MPS_MAX_CLIENTS_REACHED", "MPS has no room for another client"),
        ("RuntimeError: cuInit failed with CUDA error 805", "the job found no MPS server"),
        ("RuntimeError: cuCtxCreate failed: CUresult 807", "the MPS server ended or was recovering"),
        ("RuntimeError: CUDA error code=808(unknown)", "MPS has no room for another client"),
        (
            "RuntimeError: the hardware resources required to support device connections have been exhausted",
            "MPS has no room for another client",
        ),
        (
            "torch.AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
            "another process holds the GPU in an exclusive compute mode",
        ),
        (
            "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable",
            "another process holds the GPU in an exclusive compute mode",
        ),
        (
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
            "port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
            "another job or program holds this port: use MASTER_PORT",
        ),
        ("OSError: [Errno 98] Address already in use", "another job or program holds this port"),
        (
            "torch.distributed.DistBackendError: NCCL error, internal error\nLast error:\n"
            "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 98000",
            "NCCL accepts one rank per GPU",
        ),
        (
            "ValueError: invalid literal for int() with base 10: 'MIG-6d5f0f8e-1c3b-5a6e-9c47-9a3c1f7a2b10'",
            "the program reads CUDA_VISIBLE_DEVICES as numbers",
        ),
    ],
)
def test_failures_of_sharing_have_a_remedy(tmp_path, printed, remedy):
    written = f"{TRACE}{printed}\n"
    (tmp_path / "stderr.log").write_text(written)
    (tmp_path / "stdout.log").write_text("")
    cause = causes.judge_output(tmp_path / "stderr.log", tmp_path / "stdout.log")
    kind = printed.split(":")[0]
    assert cause.text.startswith(kind) and f"; {remedy}" in cause.text
    assert f"; {remedy}" in causes.judge_exception("RuntimeError", printed).text


def test_other_failures_have_no_remedy():
    assert causes.judge_exception("ValueError", "invalid literal for int() with base 10: 'x'").text.count(";") == 0


OF_GROMACS = (
    f"{'-' * 55}\nProgram:     gmx mdrun, version 2024.2\nSource file: src/gromacs/gpu_utils/devicebuffer.cuh\n\n"
    "Fatal error:\n{}\n\nFor more information and tips for troubleshooting, please check the GROMACS\n"
    f"website at https://manual.gromacs.org/current/user-guide/run-time-errors.html\n{'-' * 55}\n"
)
OF_OPEN_MPI = (
    f"{'-' * 74}\nMPI_ABORT was invoked on rank 0 in communicator MPI_COMM_WORLD\nwith errorcode 1.\n\n"
    "NOTE: invoking MPI_ABORT causes Open MPI to kill all MPI processes.\n"
    f"You may or may not see output from other processes, depending on\nexactly when Open MPI kills them.\n{'-' * 74}\n"
)
OF_MPICH = (
    f"application called MPI_Abort(MPI_COMM_WORLD, 1) - process 0\n{'=' * 83}\n"
    "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   PID 12345 RUNNING AT n01\n=   EXIT CODE: 134\n"
    f"=   CLEANING UP REMAINING PROCESSES\n=   YOU CAN IGNORE THE BELOW CLEANUP MESSAGES\n{'=' * 83}\n"
    "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Aborted (signal 6)\n"
    "This typically refers to a problem with your application.\nPlease see the FAQ page for debugging suggestions\n"
)
OF_SIGNAL = (
    "Traceback functionality not available\n\n[n01:01234] *** Process received signal ***\n"
    "[n01:01234] Signal: Aborted (6)\n[n01:01234] Signal code:  (-6)\n"
    + "".join(f"[n01:01234] [{number:2}] /lib/libc.so.6(+0x4{number})[0x7f]\n" for number in range(25))
    + "[n01:01234] *** End of error message ***\n"
)
GROMACS_OOM = "Allocation of the device buffer failed: CUDA error #2 (cudaErrorMemoryAllocation): out of memory."
LAMMPS_OOM = "ERROR: Insufficient memory on accelerator (src/GPU/gpu_extra.h:45)"
KOKKOS_OOM = (
    'Kokkos failed to allocate memory for label "atom:x".  Allocation using MemorySpace named "Cuda" failed with the '
    "following error:  Allocation of size 12.34 G failed, likely due to insufficient memory."
)
NVHPC_OOM = "Accelerator Fatal Error: call to cuMemAlloc returned error 2 (CUDA_ERROR_OUT_OF_MEMORY): Out of memory"
NAMD_OOM = "FATAL ERROR: CUDA error cudaMalloc(pp, sizeofT*len) in file src/CudaUtils.C on Pe 0: out of memory"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (OF_GROMACS.format(GROMACS_OOM), f"Fatal error: {GROMACS_OOM}"),
        (OF_GROMACS.format(GROMACS_OOM) + OF_OPEN_MPI, f"Fatal error: {GROMACS_OOM}"),
        (f"{LAMMPS_OOM}\nLast command: run 1000\n{OF_OPEN_MPI}", LAMMPS_OOM),
        (f"{LAMMPS_OOM}\nLast input line: run 1000\n{OF_MPICH}", LAMMPS_OOM),
        (
            "terminate called after throwing an instance of 'Kokkos::Experimental::RawMemoryAllocationFailure'\n"
            f"  what():  {KOKKOS_OOM}\n\n{OF_SIGNAL}",
            "Kokkos::Experimental::RawMemoryAllocationFailure: Kokkos failed to allocate memory",
        ),
        (f"{NVHPC_OOM}\n File: /src/a.f90\n Function: main:1\n Line: 5\n", NVHPC_OOM),
        (f"{NAMD_OOM}\n[Partition 0][Node 0] End of program\n", NAMD_OOM),
        (f"CUDA error: out of memory\nsizes: 12 x 14\nplan: forward\n{OF_DEEPSPEED}", "CUDA error: out of memory"),
    ],
)
def test_scientific_codes_say_the_cause_before_their_last_lines(judge, text, said):
    for cause in (judge(text), judge("", text), judge(text + OF_ACCELERATE), judge(OF_OPEN_MPI, text)):
        assert cause.is_oom and cause.text.startswith(said), cause


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"Error: CUDA out of memory\n{STEPS}Fatal error: bad learning rate\n", "Fatal error: bad learning rate"),
        ("Error: CUDA out of memory\nusing 32\nloss 0.3\nbad learning rate\n", "bad learning rate"),
        (f"{LAMMPS_OOM}\nERROR: Lost atoms: original 4000 current 3999\nLast command: run 9\n", "ERROR: Lost atoms"),
        (
            OF_GROMACS.format("There is no domain decomposition for 16 ranks") + OF_OPEN_MPI,
            "Fatal error: There is no domain decomposition",
        ),
        ("Error: CUDA out of memory\n" + "".join(f"{i} is a plain line\n" for i in range(12)) + "bye bye\n", "bye bye"),
    ],
)
def test_memory_that_ran_out_earlier_is_not_the_cause(judge, text, said):
    cause = judge(text)
    assert not cause.is_oom and cause.text.startswith(said), cause


IN_VLLM = f"EngineCore failed to start.\n{TRACE}ValueError: {{}}\n"
OF_ITS_PARENT = (
    f"{TRACE}RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {{}}\n"
)
FREE = (
    "Free memory on device (31.4/47.4 GiB) on startup is less than desired GPU memory utilization (0.95, 45.0 GiB). "
    "Decrease GPU memory utilization or reduce GPU memory used by other processes."
)
KV_CACHE = (
    "To serve at least one request with the models's max seq len (32768), (4.00 GiB KV cache is needed, which is "
    "larger than the available KV cache memory (1.20 GiB)."
)


@pytest.mark.parametrize("message", [FREE, KV_CACHE, "No available memory for the cache blocks."])
@pytest.mark.parametrize(
    ("child", "parent"),
    [
        ("ERROR 11-28 14:00:01 [core.py:515] ", ""),
        ("(EngineCore_0 pid=77) ERROR 11-28 14:00:01 [core.py:718] ", "(APIServer pid=70) "),
    ],
)
def test_the_cause_in_an_engine_process_of_vllm_is_found(judge, message, child, parent):
    written = prefixed(child, IN_VLLM.format(message)) + prefixed(parent, OF_ITS_PARENT)
    assert judge(written) == Cause(f"ValueError: {message}", is_oom=True)
    other = prefixed(child, IN_VLLM.format("bad model")) + prefixed(parent, OF_ITS_PARENT)
    assert judge(other) == Cause("ValueError: bad model")
