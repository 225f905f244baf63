"""A rank that follows: loads its part of the model and launches what rank 0 tells it to."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import numpy.typing as npt
from torch.profiler import profile, record_function

from engine.errors import KvtrailError
from engine.kv.blocks import BlockCopy
from engine.models.registry import load_model
from engine.models.share import Share
from engine.parallel.group import Group, make_group
from engine.parallel.memory import RankMemory
from engine.parallel.ranks import Failure, Task
from engine.running.threads import set_threads
from engine.scheduling.plans import DecodePlan
from engine.scheduling.rows import RowIndex, Rows
from engine.transport.device_rows import IntArray
from engine.worker.device import device_scope, resolve_dtype
from engine.worker.prefill_inputs import PackedPrompts
from engine.worker.room import allocating_worker, room_for_blocks
from engine.worker.runner import ComputedPrompts
from engine.worker.worker import Worker

_LOOK_S = 0.2
"""Between two looks at whether rank 0 is there."""


def follow(descriptor: int) -> None:
    """Be a rank; `descriptor` is of the socket over which rank 0 speaks. Never returns."""
    # Ctrl-C and a request to end reach all processes of a terminal or a service. Rank 0 decides
    # what they mean.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    connection, code = Connection(descriptor), 0
    try:
        task: Task = connection.recv()
    except EOFError:
        os._exit(code)
    try:
        threading.Thread(target=_leave_with, args=(task,), daemon=True).start()
        with device_scope(task.meeting.device):
            _work(connection, task)
    except (EOFError, ConnectionError):
        # Rank 0 speaks no more.
        pass
    except BaseException as error:
        code = 1
        _say(connection, error)
    _leave(task, code)


def _leave_with(task: Task) -> None:
    """End this process when its parent has ended, even if it waits for it on the device."""
    while os.getppid() == task.parent:
        time.sleep(_LOOK_S)
    _leave(task, 0)


def _leave(task: Task, code: int) -> None:
    """Not by way of destructors, which would wait for the other ranks."""
    # Rank 0 removes it, too, unless it was killed.
    shutil.rmtree(task.meeting.folder, ignore_errors=True)
    os._exit(code)


def _say(connection: Connection, error: BaseException) -> None:
    words = f"{type(error).__name__}: {error}".rstrip(": ")
    known = error if isinstance(error, KvtrailError) else None
    try:
        connection.send(Failure(words, known))
    except OSError:
        return


def _work(connection: Connection, task: Task) -> None:
    config, meeting = task.config, task.meeting
    if meeting.device.type == "cpu":
        set_threads(config.threads, meeting.size)
    group = make_group(meeting)
    model = load_model(
        config.model,
        device=meeting.device,
        dtype=resolve_dtype(config.dtype),
        seed=config.seed,
        share=Share(meeting.rank, meeting.size),
        group=group,
        quantization=config.quantization,
        max_model_len=config.max_model_len,
    ).model
    length, graphs = task.max_model_len, task.uses_graphs
    asked = config.num_kv_blocks
    connection.send(asked or room_for_blocks(config, model, length, uses_graphs=graphs))
    _, (sizes,) = connection.recv()
    blocks = sizes["num_kv_blocks"]
    with allocating_worker(config, model, length, blocks, uses_graphs=graphs):
        group.connect()
        rows = Rows(config.max_batch_size, length, config.block_size)
        worker = Worker(config, model, rows, use_graphs=graphs, **sizes)
    connection.send(None)
    follower = _Follower(connection, group, worker)
    known = follower.known()
    while True:
        with follower.waiting():
            what, arguments = connection.recv()
        known[what](*arguments)


class _Follower:
    """What a rank does when it is told to."""

    def __init__(self, connection: Connection, group: Group, worker: Worker) -> None:
        self._connection = connection
        self._group = group
        self._worker = worker
        self._computed: ComputedPrompts | None = None
        self._profiler: profile | None = None

    def waiting(self) -> AbstractContextManager[object]:
        """Surround what waits for rank 0: a range of a trace."""
        return nullcontext() if self._profiler is None else record_function("wait for rank 0")

    def known(self) -> dict[str, Callable[..., None]]:
        """By the name that rank 0 calls it by."""
        return {
            "copy_blocks": self._copy_blocks,
            "change_rows": self._change_rows,
            "compute": self._compute,
            "sample": self._sample,
            "shape": self._shape,
            "decode": self._decode,
            "memory": self._memory,
            "trace": self._trace,
        }

    def _copy_blocks(self, copies: list[BlockCopy]) -> None:
        self._worker.copy_blocks(copies)

    def _change_rows(self, offsets: npt.NDArray[np.int64], words: IntArray) -> None:
        self._worker.rows.apply(offsets, words)

    def _compute(self, prompts: PackedPrompts) -> None:
        self._computed = self._worker.prefiller.launch(prompts)

    def _sample(self, count: int, is_drawn: bool) -> None:
        self._worker.runner.sample(self._last_computed(), count, is_drawn=is_drawn)

    def _shape(self, rows: RowIndex, places: npt.NDArray[np.int64]) -> None:
        hidden = self._last_computed().hidden
        at = self._worker.to_device(places)
        self._worker.runner.logits_of_prompts(hidden[at])
        self._take_tokens(rows)

    def _decode(self, plan: DecodePlan, shaped: RowIndex | None) -> None:
        states = self._worker.decode(plan)
        if shaped is not None:
            at = self._worker.to_device(shaped.astype(np.int64))
            self._worker.runner.logits_of_step(states[at])
            self._take_tokens(shaped)

    def _memory(self) -> None:
        self._connection.send(RankMemory.of(self._group.rank, self._worker))

    def _trace(self, folder: Path | None) -> None:
        if folder is None:
            self._profiler = profile()
            self._profiler.start()
        elif self._profiler is not None:
            self._profiler.stop()
            self._profiler.export_chrome_trace(str(folder / f"rank-{self._group.rank}.json"))
            self._profiler = None
        self._connection.send(None)

    def _take_tokens(self, rows: RowIndex) -> None:
        """What rank 0 chose for `rows`: it alone knows what they ask of their logits."""
        places = self._worker.to_device(rows.astype(np.int64))
        fed = self._worker.rows.fields.last_token
        tokens = fed[places]
        self._group.broadcast(tokens)
        fed[places] = tokens

    def _last_computed(self) -> ComputedPrompts:
        if self._computed is None:
            raise ValueError("Nothing was computed that could be sampled.")
        return self._computed
