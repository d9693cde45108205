"""One batch while this worker runs it: its lines are sent as requests, and their answers kept."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import deque
from collections.abc import Callable
from typing import Final, TypeVar

from parts.batches.files.folder import MAX_AGE_S
from parts.batches.lines import Expected, InputLines, checked_lines, result_line, unfinished_line
from parts.batches.results import ResultFiles
from parts.batches.store.base import StorageFull, StoredObject
from parts.batches.stored import Json, Storage, document_of, encode, file_object
from service.admission.lifecycle import NotReady
from service.http.inner import InnerAnswer, Sender, send_inside
from service.jobs.base import Ending, JobDeferred, JobRun
from service.runtime import Runtime
from service.store.base import StoreError
from service.work import in_thread

log = logging.getLogger("harmonium.batches")

R = TypeVar("R")

WINDOW_S: Final = 24 * 3600
_LOOK_S: Final = 0.2  # how far the disk may be behind
_TOLD_S: Final = 1.0  # the same of what clients see
_AGAIN_S: Final = 1.0  # after the disk or the store failed
_MOST_AGAIN_S: Final = 15.0  # after a refusal for now
_WRITTEN_LINES: Final = 1000  # of those that are not run, at a time
CANCELLED: Final = "batch_cancelled"
_CANCELLED: Final = "The batch was cancelled before this request was run."
_EXPIRED: Final = "The batch expired before this request was run."


class RunningBatch:
    """A batch from where it was on, to its end or until the job leaves this worker."""

    def __init__(
        self,
        runtime: Runtime,
        storage: Storage,
        found: StoredObject,
        fence: int,
        sender: Sender,
        room: Callable[[], int],
        lasts_s: int = MAX_AGE_S,
    ) -> None:
        """`room`: how many of its requests may run at a time; `lasts_s`: how long its files are
        kept."""
        self._runtime, self._storage, self._lasts_s = runtime, storage, lasts_s
        self._found, self._fence, self._sender = found, fence, sender
        self._room = room
        self._document: Json = document_of(found)
        self._lines = InputLines(storage.folder.path)
        self._results = ResultFiles(storage.folder, found.id, fence)
        self._todo: deque[int] = deque()  # lines that were not begun
        self._workers: set[asyncio.Task[None]] = set()
        self._is_written = True  # the disk took all
        self._told_at = 0.0

    async def run(self, job: JobRun) -> None:
        """Run the batch; raises StoreError and JobDeferred."""
        if not await self._check():
            return
        try:
            await self._take_over()
            if job.ending is None:
                ending = await self._run_lines(job)
            else:
                ending = job.ending
            if ending is Ending.LOST:
                return
            if ending is Ending.RELEASED:
                raise JobDeferred(0)
            status = "cancelled" if ending is Ending.CANCELLED else "completed"
            await self._end("expired" if self._is_expired(job) and ending is None else status)
        except JobDeferred:
            await self._write()
            raise
        finally:
            self._results.close()

    async def fail(self, code: str, message: str) -> None:
        """End the batch here: what is done is kept."""
        self._document["errors"] = _errors({"code": code, "message": message})
        try:
            self._lines = await self._read_lines()
            await self._take_over()
            await self._end("failed", (code, message))
        finally:
            self._results.close()

    async def _check(self) -> bool:
        """Check all lines; false if they ended the batch."""
        try:
            self._lines = await self._read_lines()
            # Names of the model may be others when a batch continues: its lines say so then.
            faults = self._lines.faults if self._document["in_progress_at"] is None else []
        except OSError as error:
            log.error("The input of batch %s cannot be read: %s", self._found.id, error)
            message = (
                "The content of the input file is not in this server's folder; servers with a "
                "common Redis need a common NIM_FILES_PATH."
            )
            code = "file_not_found"
            faults = [{"code": code, "message": message, "param": "input_file_id"}]
        if self._found.purpose:  # Anthropic's API: each request has its own answer
            faults = [fault for fault in faults if fault["code"] != "model_not_found"]
        if not faults:
            return True
        self._document["errors"] = _errors(*faults)
        await self._finish("failed", {})
        return False

    async def _read_lines(self) -> InputLines:
        file = await self._storage.store.get("file", self._found.uses, self._found.tenant)
        runtime, principal = self._runtime, self._sender.principal
        allowed = None if principal is None else principal.models
        names = runtime.model.names
        # Any name of the model opens all of them, as for a request.
        may_use = allowed is None or any(name in allowed for name in names)
        adapters = [each.name for each in runtime.adapters.all()] if runtime.adapters else []
        usable = {name for name in adapters if allowed is None or name in allowed}
        expected = Expected(
            self._document["endpoint"],
            frozenset((*names, "") if may_use else ()) | usable,
            runtime.limits.max_body_bytes,
        )
        path = self._storage.folder.of(file.content)
        return await in_thread(lambda: checked_lines(path, expected))

    async def _take_over(self) -> None:
        document = self._document
        document["request_counts"]["total"] = len(self._lines.starts)
        if document["in_progress_at"] is None:
            document["status"], document["in_progress_at"] = "in_progress", self._now()
        while True:
            try:
                await asyncio.to_thread(self._results.open, self._lines.custom_ids)
                break
            except (StorageFull, OSError) as error:
                self._results.close()
                log.warning("Batch %s waits for the disk: %s", self._found.id, error or "full")
                await asyncio.sleep(_AGAIN_S)
                self._results = ResultFiles(self._storage.folder, self._found.id, self._fence)
        await self._tell()

    async def _run_lines(self, job: JobRun) -> Ending | None:
        """Run what is not done; returns why it is to be left, None when all is done or its time
        is over."""
        done, ids = self._results.done, self._lines.custom_ids
        self._todo = deque(index for index, id in enumerate(ids) if id not in done)
        loop = asyncio.get_running_loop()
        leaving = asyncio.create_task(job.ended.wait())
        try:
            while job.ending is None and not self._is_expired(job):
                self._check_accepting()
                self._spawn()
                if not (self._workers or self._todo):
                    break
                await asyncio.wait((leaving,), timeout=_LOOK_S)
                await self._write()
                if loop.time() - self._told_at >= _TOLD_S and not await self._tell():
                    job.end(Ending.LOST)
        finally:
            for task in (leaving, *self._workers):
                task.cancel()
            await asyncio.wait((leaving, *self._workers))
        return job.ending

    def _check_accepting(self) -> None:
        try:
            self._runtime.lifecycle.check_accepting()
        except NotReady as error:
            raise JobDeferred(0) from error

    def _spawn(self) -> None:
        """Have as many lines run as there is room for."""
        room = self._room() if self._is_written else 0
        while len(self._workers) < room and self._todo:
            task = asyncio.create_task(
                self._work(self._todo.popleft()), name=f"lines of {self._found.id}"
            )
            self._workers.add(task)
            task.add_done_callback(self._workers.discard)

    async def _work(self, index: int) -> None:
        """Run a line, and then others."""
        await self._run_line(index)
        while self._todo and self._is_written and len(self._workers) <= self._room():
            await self._run_line(self._todo.popleft())

    async def _run_line(self, index: int) -> None:
        custom_id = self._lines.custom_ids[index]
        id = f"batch_req_{self._runtime.new_id()}"
        try:
            body = await asyncio.to_thread(self._lines.read, index)
            is_error, line = result_line(id, custom_id, await self._answer(body))
        except Exception:
            log.exception("Batch %s: the request of line %r failed", self._found.id, custom_id)
            line = unfinished_line(id, custom_id, "server_error", "An internal error ended it.")
            is_error = True
        self._results.add(line, is_error=is_error)

    async def _answer(self, body: bytes) -> InnerAnswer:
        """The answer to a request, sent again while it is refused for now."""
        app, url = self._runtime.jobs.app, self._document["endpoint"]
        assert app is not None
        while True:
            answer = await send_inside(app, self._sender, url, body)
            if not answer.is_refused_for_now:
                return answer
            await asyncio.sleep(min(max(answer.retry_after_s, 0.1), _MOST_AGAIN_S))

    def _is_expired(self, job: JobRun) -> bool:
        age_s = job.claim.age_s + asyncio.get_running_loop().time() - job.begun_at
        return age_s >= WINDOW_S

    async def _write(self) -> None:
        """Bring the disk up to date; while it is full no more lines are begun."""
        try:
            await asyncio.to_thread(self._results.write)
        except (StorageFull, OSError) as error:
            if self._is_written:
                log.warning("Batch %s waits for the disk: %s", self._found.id, error or "full")
            self._is_written = False
        else:
            self._is_written = True

    async def _tell(self) -> bool:
        """Bring what clients see up to date; false when nothing more can be written."""
        self._told_at = asyncio.get_running_loop().time()
        self._note_counts()
        store = self._storage.store
        try:
            return await store.write(
                self._found.id, self._fence, encode(self._document), self._results.num_bytes
            )
        except StoreError as error:
            log.debug("Batch %s is not being stored: %s", self._found.id, error)
            return True

    def _note_counts(self) -> None:
        counts = self._results.counts
        self._document["request_counts"] |= {"completed": counts.completed, "failed": counts.failed}
        self._document["usage"] = counts.usage()

    async def _end(self, status: str, rest: tuple[str, str] | None = None) -> None:
        """End the batch; `rest`: the code and message of the requests that were not run."""
        if status == "expired":
            rest = ("batch_expired", _EXPIRED)
        elif status == "cancelled" and self._found.purpose:  # clients of Anthropic's API have all
            rest = (CANCELLED, _CANCELLED)
        if status == "completed":
            self._document["status"] = "finalizing"
            self._document["finalizing_at"] = self._now()
        await self._write_all()  # so that the rest is what is not done
        if rest is not None:
            await self._write_rest(*rest)
        sizes = await self._surely(self._results.complete)
        await self._finish(status, sizes)

    async def _write_rest(self, code: str, message: str) -> None:
        done = frozenset(self._results.done)
        left = [id for id in self._lines.custom_ids if id not in done]
        self._document["not_run"] = len(left)
        for start in range(0, len(left), _WRITTEN_LINES):
            for custom_id in left[start : start + _WRITTEN_LINES]:
                id = f"batch_req_{self._runtime.new_id()}"
                line = unfinished_line(id, custom_id, code, message)
                self._results.add(line, is_error=True)
            await self._write_all()

    async def _write_all(self) -> None:
        await self._surely(self._results.write)

    async def _surely(self, work: Callable[[], R]) -> R:
        """Do work with the disk, again and again while it is full."""
        while True:
            try:
                return await asyncio.to_thread(work)
            except (StorageFull, OSError) as error:
                log.warning("Batch %s waits for the disk: %s", self._found.id, error or "full")
                await asyncio.sleep(_AGAIN_S)

    async def _finish(self, status: str, sizes: dict[bool, int]) -> None:
        """End the batch with the files that are not empty; tries again while the store is away."""
        document, now = self._document, self._now()
        self._note_counts()
        document["status"], document[f"{status}_at"] = status, now
        files = []
        for is_error, size in sizes.items():
            if size:
                files.append(self._file(is_error=is_error, size=size, now=now))
                document["error_file_id" if is_error else "output_file_id"] = files[-1].id
        encoded, is_unsure = encode(document), False
        while True:
            try:
                store = self._storage.store
                is_ended = await store.finish(self._found.id, self._fence, encoded, files)
                if not is_ended and is_unsure:  # the answer was lost
                    found = await store.get("batch", self._found.id, self._found.tenant)
                    is_ended = found.document == encoded
                break
            except StoreError as error:
                log.debug("The end of batch %s is not stored: %s", self._found.id, error)
                is_unsure = True
                await asyncio.sleep(_AGAIN_S)
        names = [self._results.name(is_error=is_error) for is_error in (False, True)]
        kept = {file.content for file in files} if is_ended else set()
        await self._storage.remove(*(name for name in names if name not in kept))
        counts = document["request_counts"]
        log.info("batch %s: %s, %s", self._found.id, status, counts)

    def _file(self, *, is_error: bool, size: int, now: int) -> StoredObject:
        kind = "error" if is_error else "output"
        digest = hashlib.sha256(f"{self._found.id} {kind}".encode()).hexdigest()
        id = f"file-{digest[:32]}"
        lasts_s = self._lasts_s
        name = f"{self._found.id}_{kind}.jsonl"
        document = file_object(id, name, "batch_output", size, now, lasts_s)
        return StoredObject(
            id,
            "file",
            self._found.tenant,
            encode(document),
            lasts_s,
            purpose="batch_output",
            content=self._results.name(is_error=is_error),
            num_bytes=size,
        )

    def _now(self) -> int:
        return int(self._runtime.clock())


def _errors(*faults: Json) -> Json:
    data = [{"code": None, "message": "", "line": None, "param": None} | fault for fault in faults]
    return {"object": "list", "data": data}
