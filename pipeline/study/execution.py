"""Execution of a study: reads the composed configurations, runs the study and the command of `on_end`."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from omegaconf import DictConfig

from pipeline.base.system import helper_program, interrupts, startup, study_cache, words
from pipeline.base.system.errors import CollocationError, CommandError, ConfigError, InUseError
from pipeline.base.system.interrupts import UndoStack
from pipeline.prepare.device.device_choice import WaitBudget
from pipeline.record import tracking_sender
from pipeline.record.tracking_sender import Sender
from pipeline.study.plans import make_plan
from pipeline.study.preview import preview
from pipeline.study.study_request import StudyRequest, read_request
from pipeline.study.study_run import StudyRun

Engine = Callable[[StudyRequest, UndoStack], int]
"""Function that runs a study request and returns the exit status."""


def execute(
    configs: Sequence[DictConfig],
    *,
    is_sweep: bool,
    engine: Engine | None = None,
    take_sender: Callable[[], AbstractContextManager[Sender]] = tracking_sender.take,
) -> int:
    """Plan and run a study from its composed configurations, in this process unless there is an `engine`.

    Returns:
        0 if every group has a result; 1 if some groups failed, timed out or were not started because of
        `time_limit_s`; 2 if nothing could be started.

    Raises:
        Interrupted: the user sent a signal; everything is cleaned up and recorded by then.
    """
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    study_cache.clear()
    request = None
    try:
        with UndoStack() as stack:
            request = read_request(configs, stack, take_sender, is_sweep=is_sweep)
            if request.config.on_end is not None:
                refuse_unknown_program(request.config.on_end)
            status = (engine or run_here)(request, stack)
    except CollocationError as error:
        words.say(f"error: {error}")
        status = 1 if request is not None and request.has_started else 2
    except Exception as error:
        if (interrupted := interrupts.find_interruption(error)) is not None:
            raise interrupted from error
        sys.excepthook(*sys.exc_info())
        status = 1
    if request is not None and request.has_started:
        startup.accept_lost_output()
        _inform_user(request, status)
    return status


def _inform_user(request: StudyRequest, status: int) -> None:
    config = request.config
    if config.on_end is not None and config.plan_file is None:  # a worker has a plan file; its launcher informs
        experiment = config.tracking.experiment
        run_end_command(config.on_end, request.summary or f"{experiment}: ended with exit status {status}")


def run_here(request: StudyRequest, stack: UndoStack) -> int:
    """Run a study in this process on the devices of its plan; return the exit status."""
    if request.config.dry_run:
        return preview((request, *make_plan(request)))
    showing = stack.enter_context(request.exporter.serve())
    return _begin(request, stack).run(showing)


def _begin(request: StudyRequest, stack: UndoStack) -> StudyRun:
    """Return the study with its plan, its environments and its devices, which it holds until the stack is left.

    If a device is in use, the study releases the other devices, waits, and plans again, because the state of the
    machine may have changed.
    """
    config = request.config
    patience = WaitBudget(is_wanted=config.wait, limit_s=config.wait_limit_s, time_limit_s=config.time_limit_s)
    while True:
        try:
            with UndoStack() as device_stack:
                study = StudyRun(request, *make_plan(request), waited_s=patience.waited_s)
                study.take_devices(device_stack)
                with interrupts.hold_interrupts():
                    stack.enter_context(device_stack.pop_all())
                return study
        except InUseError as error:
            patience.wait(error)


SUMMARY, SUMMARY_VARIABLE = "SUMMARY", "COLLOCATION_SUMMARY"
"""The word of the command that the summary replaces, and the environment variable that has the summary."""
_LIMIT_S = 10.0


def refuse_unknown_program(command: Sequence[str]) -> None:
    """Raise `ConfigError` if the program of the command does not exist."""
    if not command or shutil.which(command[0]) is None:
        name = repr(command[0]) if command else "none"
        raise ConfigError(f"on_end: program {name} was not found; write, for example, on_end=[notify-send,{SUMMARY}]")


def run_end_command(command: Sequence[str], summary: str) -> None:
    """Run the command without a shell, for at most ten seconds; a failure is only noted."""
    argv = [summary if word == SUMMARY else word for word in command]
    environ = {**os.environ, SUMMARY_VARIABLE: summary}
    try:
        helper_program.run(argv, environ=environ, timeout_s=_LIMIT_S)
    except CommandError as error:
        short = CommandError(argv[:1], error.status, " ".join(error.stderr.split()))  # omits the arguments
        words.say(f"note: on_end: {short}")
