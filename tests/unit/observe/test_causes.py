"""Why a program failed is its own error, and not the footer of what started it; out of memory in all its words."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.observe import causes
from pipeline.observe.causes import Cause
from tests.support.tables import read_texts, rows

TEXTS = read_texts("causes")
TRACE, FAILED, STEPS, CUDA_OOM = TEXTS["TRACE"], TEXTS["FAILED"], TEXTS["STEPS"], f"{TEXTS['CUDA_OOM']}\n"
OF_TORCHRUN, OF_ACCELERATE, OF_OPEN_MPI = TEXTS["OF_TORCHRUN"], TEXTS["OF_ACCELERATE"], TEXTS["OF_OPEN_MPI"]
RECORDED = Path(__file__).resolve().parents[2] / "data" / "failed_programs"
SCIENTIFIC = ("OF_IPYTHON", "OF_OPEN_MPI", "OF_MPICH", "OF_SIGNAL")
FOOTERS = {
    **{name: text for name, text in TEXTS.items() if name.startswith("OF_") and name not in SCIENTIFIC},
    "Slurm": "srun: error: n01: task 0: Exited with exit code 1\n",
    "make": "make: *** [Makefile:3: train] Error 1\n",
    "shell": "training failed, see above\n",
    "log": "INFO:root:closing files\nINFO:root:bye\n",
    "destructor": f"Exception ignored in: <function A.__del__>\n{TRACE}OSError: of a destructor\n",
    "Hydra and wandb": TEXTS["OF_HYDRA"] + TEXTS["OF_WANDB"],
    "torchrun and Slurm": f"{OF_TORCHRUN}srun: error: n01: task 0: Exited with exit code 1\n",
}


@pytest.fixture
def judge(tmp_path):
    """What is made of error output and output."""

    def judge_texts(stderr: str, stdout: str = "") -> Cause:
        (tmp_path / "stderr.log").write_text(stderr, encoding="utf-8", newline="")
        (tmp_path / "stdout.log").write_text(stdout, encoding="utf-8", newline="")
        return causes.judge_output(tmp_path / "stderr.log", tmp_path / "stdout.log")

    return judge_texts


@rows("causes", "recorded_programs")
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
    message = "wandb: ERROR api_key not configured (no-tty). call wandb.login(key=[your_api_key])"
    assert judge(f"{message}\nwandb: Find logs at: x\n") == Cause(message)
    assert judge("") == judge("=====\n\n-----\n") == Cause()


def add_prefix(prefix: str, text: str) -> str:
    return "".join(f"{prefix}{line}\n" for line in text.splitlines())


@rows("causes", "forms_of_exceptions")
def test_the_exception_is_found_in_every_form(judge, text):
    assert judge(text).text == judge("", text).text == "ValueError: bad learning rate"


@rows("causes", "other_ends")
def test_other_ends_are_said_in_a_line(judge, text, message):
    assert judge(text) == Cause(message)


def test_of_several_ranks_the_first_to_fail_counts_and_not_those_that_lost_their_connection(judge):
    second = f"{TRACE}RuntimeError: [../third_party/gloo/pair.cc:534] Connection closed by peer [127.0.0.1]:1\n"
    ranks = add_prefix("[rank0]: ", FAILED) + add_prefix("[rank1]: ", second)
    assert (
        judge(ranks + OF_TORCHRUN).text == judge(FAILED + second + OF_TORCHRUN).text == "ValueError: bad learning rate"
    )
    assert judge(add_prefix("[rank1]: ", second) + add_prefix("[rank0]: ", TRACE + CUDA_OOM)).is_oom


@rows("causes", "out_of_memory")
def test_out_of_memory_in_the_words_of_each_library(judge, error):
    forms = [error, f"{error}\n", f"starting\n{error}\nExiting.\n", f"{error}\n{OF_ACCELERATE}"]
    is_exception = error.partition(":")[0].endswith("Error")
    for text in (*forms, *([TRACE + error, f"{TRACE}{error}\n{OF_TORCHRUN}"] if is_exception else [])):
        assert judge(text) == judge("", text) == Cause(error, is_oom=True), text


@rows("causes", "out_of_memory_in_lines")
def test_out_of_memory_over_several_lines(judge, text):
    assert judge(text).is_oom and judge("", text).is_oom


@rows("causes", "memory_only_mentioned")
def test_a_mention_of_memory_is_not_the_cause_of_another_failure(judge, text, message):
    for cause in (judge(text), judge(text, "out of memory once, going on\nstep 1\n")):
        assert not cause.is_oom and cause.text.startswith(message), cause


def test_output_tells_where_error_output_does_not(judge):
    warning = "/venv/x.py:3: UserWarning: deprecated\n  warnings.warn('deprecated')\n"
    assert judge(warning, "begin\nCUDA error: out of memory\n") == Cause("CUDA error: out of memory", is_oom=True)
    assert judge("error: bad learning rate\n", "CUDA error: out of memory\n") == Cause("error: bad learning rate")
    assert judge(warning, f"{STEPS}").text.startswith("/venv/x.py")


def test_a_reported_exception_has_its_chain_and_one_line():
    trace = f"{TRACE}{CUDA_OOM}\nThe above exception was the direct cause of the following exception:\n\n{FAILED}"
    cause = causes.judge_exception("ValueError", "bad learning rate\nof two lines", trace)
    assert cause.is_oom and cause.text == f"ValueError: bad learning rate, from {CUDA_OOM.strip()[:200]}"
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


@rows("causes", "remedies")
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


@rows("causes", "scientific_codes")
def test_scientific_codes_say_the_cause_before_their_last_lines(judge, text, message):
    for cause in (
        judge(text),
        judge("", text),
        judge(text + OF_ACCELERATE),
        judge(OF_OPEN_MPI, text),
    ):
        assert cause.is_oom and cause.text.startswith(message), cause


@rows("causes", "memory_recovered")
def test_memory_that_ran_out_earlier_is_not_the_cause(judge, text, message):
    cause = judge(text)
    assert not cause.is_oom and cause.text.startswith(message), cause


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
    written = add_prefix(child, IN_VLLM.format(message)) + add_prefix(parent, OF_ITS_PARENT)
    assert judge(written) == Cause(f"ValueError: {message}", is_oom=True)
    other = add_prefix(child, IN_VLLM.format("bad model")) + add_prefix(parent, OF_ITS_PARENT)
    assert judge(other) == Cause("ValueError: bad model")
