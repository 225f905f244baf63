"""The requests of one call of `generate` or `stream`, which are its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from engine.errors import EngineBusyError
from engine.requests.request import Request, TokenEvent
from engine.requests.validation import CheckedPrompt


@dataclass(slots=True, eq=False)
class Run:
    """The requests of one call, and the events that it has not taken yet.

    Attributes
    ----------
    waiting
        Prompts that are not submitted yet.
    submitted_s
        `time.perf_counter()` at which the next of them count as submitted.
    keeps_events
        Whether the caller takes events; `generate` does not.
    writes_text
        Whether events bring text.
    requests
        Those submitted, in order.
    unfinished
        Ids of the requests whose ends have not been delivered.
    events
        Events that the caller has not taken, in order of arrival.
    is_closed
        Whether the caller has left.
    """

    waiting: deque[CheckedPrompt]
    submitted_s: float
    keeps_events: bool
    writes_text: bool = False
    requests: list[Request] = field(default_factory=list)
    unfinished: set[int] = field(default_factory=set)
    events: deque[TokenEvent] = field(default_factory=deque)
    is_closed: bool = False

    @property
    def is_over(self) -> bool:
        """Whether nothing more will be delivered."""
        return self.is_closed or not (self.waiting or self.unfinished)


class TokenStream(Iterator[TokenEvent]):
    """The events of a run, one by one; `Engine.stream` makes them.

    It may be closed at any time and from anywhere, a signal handler included. The garbage collector
    closes one that is dropped.
    """

    def __init__(
        self, run: Run, go_on: Callable[[Run], None], leave: Callable[[Run], None]
    ) -> None:
        self._run = run
        self._go_on = go_on
        self._leave = leave

    def __next__(self) -> TokenEvent:
        """The next event, after as many steps as it takes.

        Raises
        ------
        EngineBusyError
            In the middle of another call of the engine, where a step would be needed. The stream
            stays open then; any other error closes it.
        EngineStoppedError
            When the engine has stopped.
        """
        run = self._run
        try:
            while not run.events:
                if run.is_over:
                    raise StopIteration
                self._go_on(run)
            return run.events.popleft()
        except (StopIteration, EngineBusyError):
            raise
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Abort what has not finished; what has not been taken is dropped."""
        self._leave(self._run)

    def __del__(self) -> None:
        """Close what is dropped."""
        self.close()
