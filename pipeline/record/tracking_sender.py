"""The orchestrator's end of the tracking process (`python -m pipeline.tracking serve`).

Importing MLflow takes two seconds and a write takes tens of milliseconds; in a separate process, these delays affect no
job and no sampler. The orchestrator sends requests only between windows, and waits for the replies before a window
opens.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import logging
import os
import select
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.base.domain import layout
from pipeline.base.system import interrupts, regular_files, words
from pipeline.base.system.errors import TrackingError

if TYPE_CHECKING:
    from pipeline.base.domain.records import Plan
    from pipeline.observe.study_progress import PastGroup
    from pipeline.record.group_record import GroupRecord, Original
    from pipeline.record.shards.slurm_arrays import Submission

_LIMIT_S = 300.0
_SEND_LIMIT_S = 1800.0  # a group's files may be gigabytes
_END_LIMIT_S = 30.0
_TELL_S = 10.0

# Options of commands that use no store.
_WITHOUT_STORE = frozenset(
    (
        *("--help", "-h", "--help-keys", "--hydra-help", "--cfg", "-c", "--info", "-i", "--version"),
        *("--shell-completion", "-sc"),
        *("dry_run=true", "dry_run=json"),
    )
)

log = logging.getLogger(__name__)


class Sender:
    """The tracking process. It imports MLflow at once and accesses no store before `open`.

    Methods that wait for a reply raise a TrackingError if the store cannot be used.

    Attributes:
        unsent: folders that could not be sent and remain in the spool, with the error of each.
        runs: MLflow run of each group that was sent, by folder.
        failed: artifact URIs of failed jobs, by folder and job index.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._pending: deque[dict[str, Any]] = deque()
        self._buffer = b""
        self._store: dict[str, Any] | None = None
        self._was_asked = self._was_restarted = self._has_given_up = False
        self._opening: dict[str, Any] | None = None
        self.unsent: dict[Path, str] = {}
        self.runs: dict[Path, str] = {}
        self.failed: dict[Path, dict[str, str]] = {}

    def start(self) -> None:
        """Start the process unless it is running."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "pipeline.tracking", "serve"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,
            )

    def __enter__(self) -> Sender:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def renew(self) -> Sender:
        """Close this sender and return a new sender for the next study; reuse the process if it is alive and idle."""
        new = Sender()
        if self._process is not None and self._process.poll() is None and not self._pending and not self._has_given_up:
            new._process, self._process = self._process, None
            new._was_asked = self._was_asked
        self.close()
        new.start()
        return new

    def close(self) -> None:
        """Finish pending requests and end the process; kill it if it had no request or is only creating a store."""
        if self._process is None:
            return
        from pipeline.base.system.helper_program import wait_for_end

        process, self._process = self._process, None
        assert process.stdin is not None and process.stdout is not None
        if not self._was_asked or self._is_making_store():
            process.kill()  # without a signal, the process would first finish importing MLflow
        try:
            process.stdin.close()
            wait_for_end(process, _END_LIMIT_S)
        except (OSError, subprocess.TimeoutExpired):
            process.kill()
            process.wait()
        finally:
            process.stdout.close()

    def _is_making_store(self) -> bool:
        """Return whether the process is only creating a local store, which takes seconds and is atomic."""
        opening = self._opening
        if opening is None or opening["uri"] is not None or list(self._pending) != [opening]:
            return False
        return not (Path(opening["root"]) / layout.DATABASE).exists()

    def pids(self) -> tuple[int, ...]:
        assert self._process is not None
        return (self._process.pid,)

    def open(self, experiment: str, root: Path, uri: str | None, series_points: int) -> None:
        """Open the server at `uri`, or else the store in `root`, without waiting; `wait_for_store` returns it."""
        options = {"root": str(root), "uri": uri, "series_points": series_points}
        self._opening = {"op": "open", "experiment": experiment, **options}
        self._ask(self._opening)

    def wait_for_store(self) -> dict[str, Any]:
        """Wait for all requests, and return the open store (experiment_id, uri, kind)."""
        self.finish_requests()
        assert self._store is not None
        return _check(self._store)

    def find_finished(self, experiment: str, store: str | None = None) -> list[GroupRecord]:
        """Return the ended groups of an experiment, without jobs, in the open store or in `store`, only read."""
        from pipeline.record.group_record import decode

        request = {"op": "finished", "experiment": experiment} | ({} if store is None else {"store": store})
        return [decode(group) for group in self._call(request)["groups"]]

    def close_lost(self, plan: Plan, shard: int) -> list[str]:
        """Close runs of a shard that earlier attempts did not close, and return the names of their groups.

        The plan contains only the groups of this shard.
        """
        request = {"op": "close_lost", "experiment": plan.experiment, "plan": plan.digest, "shard": shard}
        request["programs"] = [group.program_digest for group in plan.groups]
        return [str(name) for name in self._call(request)["groups"]]

    def take_over(self, shards: Mapping[str, int], facts: Mapping[str, str]) -> None:
        """Assign runs of the open store, by id, to shards of the plan that has these facts."""
        self._call({"op": "take_over", "shards": dict(shards), "facts": dict(facts)})

    def note_arrays(self, experiment: str, new: Submission) -> None:
        """Record the Slurm job arrays of an experiment in the open store."""
        self._call({"op": "submitted", "experiment": experiment, "new": dataclasses.asdict(new)})

    def find_past_groups(self, store: str) -> list[PastGroup]:
        """Return the newest successful groups of a store."""
        from pipeline.observe.study_progress import PastGroup

        return [PastGroup(**group) for group in self._call({"op": "ran", "store": store})["groups"]]

    def recall(self, run_id: str, store: str) -> Original:
        """Return the group with this run id; the run may also be one of the group's jobs."""
        from pipeline.base.system import json_decoder
        from pipeline.record.group_record import Original

        return json_decoder.decode(Original, self._call({"op": "recall", "run_id": run_id, "store": store})["group"])

    def begin(self, folder: Path) -> None:
        """Create the group's runs without waiting; MLflow's UI shows them as running."""
        self._ask({"op": "begin", "spool": str(folder)})

    def send(self, folder: Path) -> None:
        """Send a closed group without waiting; on failure its folder remains in the spool and is added to `unsent`."""
        self._ask({"op": "send", "spool": str(folder)})

    def amend(self, file: Path) -> None:
        """Add an amendment to its group without waiting; on failure its file remains in the spool."""
        self._ask({"op": "amend", "spool": str(file)})

    def finish_requests(self, until_s: float | None = None) -> None:
        """Wait for the replies to all requests; kill the process at `until_s` (monotonic clock)."""
        while self._pending:
            if until_s is not None and not self._is_answered(until_s):
                self.give_up("sending took too long after the signal")
                return
            self._take_reply()

    def give_up(self, reason: str) -> None:
        """Kill the process; unsent groups remain in the spool."""
        with interrupts.hold_interrupts():
            self._has_given_up = True
            if self._process is not None:
                self._process.kill()
            while self._pending:
                self._note(self._pending.popleft(), {"ok": False, "error": reason})

    def _call(self, request: dict[str, Any]) -> dict[str, Any]:
        self.finish_requests()
        self._ask(request)
        while True:
            oldest, reply = self._take_reply()
            if oldest is request:
                return _check(reply)

    # Interrupts are held while a request is written or a reply is read: a reply belongs to the oldest pending request.

    def _ask(self, request: dict[str, Any]) -> None:
        with interrupts.hold_interrupts():
            if self._has_given_up:
                self._note(request, {"ok": False, "error": "the tracking process was ended"})
                return
            self._pending.append(request)
            self._was_asked = True
            self._write(request)

    def _write(self, request: dict[str, Any]) -> None:
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write((json.dumps(request) + "\n").encode())
            self._process.stdin.flush()
        except OSError:
            log.debug("the tracking process has ended; reading its reply reports this")

    def _note(self, request: dict[str, Any], reply: dict[str, Any]) -> None:
        if request["op"] == "open":
            self._store = reply
        if "spool" not in request:
            return
        folder = Path(request["spool"])
        if request["op"] == "send" and reply.get("ok"):
            self.unsent.pop(folder, None)
            self.failed[folder] = reply.get("failed") or {}
            if run_id := reply.get("run_id"):
                self.runs[folder] = run_id
        elif request["op"] == "send":
            self.unsent[folder] = str(reply.get("error"))
            log.warning("%s remains in the spool: %s", folder.name, reply.get("error"))
        elif not reply.get("ok"):
            log.info("%s of %s failed: %s", request["op"], folder.name, reply.get("error"))

    def _take_reply(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the oldest request and its reply; restart a dead or unresponsive process once."""
        while (error := self._read()) is not None and not self._was_restarted:
            log.warning("%s; restarting it", error)
            self._restart()
        with interrupts.hold_interrupts():
            if error is None:
                line, self._buffer = self._buffer.split(b"\n", 1)
                reply = json.loads(line)
            else:
                reply = {"ok": False, "error": error}
            request = self._pending.popleft()
            self._note(request, reply)
        return request, reply

    def _read(self) -> str | None:
        """Wait for a complete reply; return the error if there is no reply."""
        begin_s = time.monotonic()
        deadline_s = begin_s + (_SEND_LIMIT_S if self._pending[0]["op"] == "send" else _LIMIT_S)
        tell_s = begin_s + _TELL_S
        assert self._process is not None and self._process.stdout is not None
        while b"\n" not in self._buffer:
            if not self._is_answered(min(deadline_s, tell_s)):
                if (now_s := time.monotonic()) < deadline_s:
                    self._report_wait(now_s - begin_s)
                    tell_s = now_s + (now_s - begin_s)
                    continue
                self._process.kill()  # a late reply would be assigned to another request
                return "the tracking process did not reply in time"
            with interrupts.hold_interrupts():
                received = os.read(self._process.stdout.fileno(), 65536)
                self._buffer += received
            if not received:
                return "the tracking process has ended (its messages are above)"
        return None

    def _is_answered(self, until_s: float) -> bool:
        """Wait until `until_s` for a reply or the end of the process; return whether either occurred."""
        assert self._process is not None and self._process.stdout is not None
        poll = select.poll()
        poll.register(self._process.stdout, select.POLLIN)
        return b"\n" in self._buffer or bool(poll.poll(1000 * max(0.0, until_s - time.monotonic())))

    def _report_wait(self, waited_s: float) -> None:
        request = self._pending[0]
        if request["op"] == "send":
            files = regular_files.list_files(Path(request["spool"])).files
            with contextlib.suppress(OSError):  # sent just now
                size = sum(file.lstat().st_size for file in files) / 1e6
                group, waited = Path(request["spool"]).name, words.format_duration(waited_s)
                words.say(
                    f"sending {group} ({size:.0f} MB) has taken {waited} so far; press Ctrl-C to leave it in the spool"
                )

    def _restart(self) -> None:
        """Start a new process with all requests without a reply; each request may be executed twice."""
        with interrupts.hold_interrupts():
            self._was_restarted = True
            process, self._process, self._buffer = self._process, None, b""
            assert process is not None and process.stdin is not None and process.stdout is not None
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    pipe.close()
            self.start()
            if self._opening is not None and self._opening not in self._pending:
                self._pending.appendleft(self._opening)
            for request in self._pending:
                self._write(request)


def _check(reply: dict[str, Any]) -> dict[str, Any]:
    if not reply.get("ok"):
        raise TrackingError(str(reply.get("error")))
    return reply


_early: list[Sender] = []
"""The sender that was started before the configuration was known, until the first study uses it."""


def start_early(arguments: Sequence[str]) -> None:
    """Start the tracking process before the configuration is known, because importing MLflow takes longest.

    `take` returns this sender to the study; otherwise `end_early` closes it.
    """
    # Words after `--` are options of the user's program.
    options = set(itertools.takewhile(lambda word: word != "--", arguments))
    if not _WITHOUT_STORE & options:
        sender = Sender()
        sender.start()
        _early.append(sender)


def take() -> Sender:
    """Return the sender that was started early, or else a new sender."""
    return _early.pop() if _early else Sender()


def end_early() -> None:
    """Close the sender that was started early if no study uses it."""
    while _early:
        _early.pop().close()
