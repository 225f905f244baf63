"""Turns: one call at a time changes an engine's state, and calls in between are settled afterwards.

A call may come in the middle of another: from a signal handler, from another thread, or from the
garbage collector, which closes a dropped stream at any allocation. And Ctrl-C may interrupt a call
anywhere. So one call at a time has the turn, and either comes to its end or stops the engine. A
call that may wait leaves a note, which is settled when the call under way has ended.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from threading import Lock
from types import FrameType
from typing import Generic, ParamSpec, TypeVar

from engine.errors import EngineBusyError, EngineStoppedError

Note = TypeVar("Note")
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Turn(Generic[Note]):
    """Lets one call at a time change the state, and keeps the notes of the others.

    Parameters
    ----------
    settle
        Does what a note says. Called only between changes of the state.

    Attributes
    ----------
    noted
        Notes to settle, in order. None is lost: an append is one operation of the interpreter.
    failure
        What stopped the engine, None while it goes on.
    """

    def __init__(self, settle: Callable[[Note], None]) -> None:
        self.noted: deque[Note] = deque()
        self.failure: str | None = None
        self._settle = settle
        self._taken = Lock()
        self._num_tries = 0

    @property
    def has_stopped(self) -> bool:
        """Whether a call that had the turn did not come to its end, or `end` was called."""
        return self._has_stopped()

    def take(
        self,
        change: Callable[Arguments, Result],
        *arguments: Arguments.args,
        **keywords: Arguments.kwargs,
    ) -> Result:
        """Settle earlier notes, call `change`, and settle the notes that came meanwhile.

        Raises
        ------
        EngineBusyError
            While another call has the turn; nothing has changed then.
        EngineStoppedError
            When one did not come to its end, as this one does not if it raises.
        """
        self._num_tries += 1
        if self.failure is not None or not self._taken.acquire(blocking=False):
            self._refuse()
        try:
            while self.noted:
                self._settle(self.noted.popleft())
            result = change(*arguments, **keywords)
            while self.noted:
                self._settle(self.noted.popleft())
            self._taken.release()
            if self.noted:
                # A note that came after the loop above found the turn still taken.
                self._settle_noted()
            return result
        except BaseException as error:
            # Keep only the words: the error itself would keep every tensor of its frames.
            words = f"{type(error).__name__}: {error}".rstrip(": ")
            self.failure = f"an earlier call failed ({words}) and left its requests half moved"
            raise

    def note(self, note: Note) -> None:
        """Settle a note at once, or as soon as the call under way has ended.

        Raises
        ------
        EngineStoppedError
            When the engine has stopped: it is not settled then.
        """
        self.noted.append(note)
        self._settle_noted()

    def end(self, why: str) -> None:
        """Stop the engine on purpose, once the call under way has ended.

        Raises
        ------
        EngineBusyError
            In the middle of another call.
        """
        if not self.has_stopped:
            self.take(_nothing)
            self.failure = why

    def require_going(self, refused: FrameType | None = None) -> None:
        """Raise `EngineStoppedError` if the engine has stopped.

        `refused` is a call of `take` that was not given the turn, where there is one.
        """
        if self._has_stopped(refused):
            raise EngineStoppedError(
                f"This engine has stopped: {self.failure}: build a new Engine and submit again."
            )

    def _settle_noted(self) -> None:
        try:
            self.take(_nothing)
        except EngineBusyError:
            return

    def _refuse(self) -> None:
        self.require_going(refused=sys._getframe(1))
        raise EngineBusyError(
            "This engine is in the middle of another call. A signal handler, a finalizer or "
            "another thread may call submit and abort and close streams meanwhile; steps must "
            "wait until that call has returned."
        )

    def _has_stopped(self, refused: FrameType | None = None) -> bool:
        if self.failure is None and self._taken.locked() and self._is_left_taken(refused):
            # Interrupted so near to its beginning or its end that it could not record it itself.
            self.failure = "an earlier call was broken off and left its requests half moved"
        return self.failure is not None

    def _is_left_taken(self, refused: FrameType | None) -> bool:
        """Whether the turn is taken and no thread is inside `take`, as after an exception."""
        num_tries = self._num_tries
        frame: FrameType | None
        for frame in sys._current_frames().values():
            while frame is not None:
                is_take = frame.f_code is Turn.take.__code__ and frame is not refused
                if is_take and frame.f_locals.get("self") is self:
                    return False
                frame = frame.f_back
        # If the number of tries differs, another thread gave its turn back or took the next.
        return self._taken.locked() and num_tries == self._num_tries


def _nothing() -> None:
    """A change that only settles notes."""
