"""Headless Chromium for tests, driven by its DevTools protocol over a pipe: no driver, no port."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

WAIT_S = 10.0
_OPTIONS = (
    "--headless=new",
    "--no-sandbox",  # containers have no user namespaces; only our own page is opened
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
)


def chromium() -> str | None:
    """The browser's program; None where there is none."""
    return shutil.which("chromium") or shutil.which("google-chrome")


class Browser:
    """One page in one browser, and everything that it says, asks for and throws."""

    def __init__(self, profile: Path) -> None:
        ours_to_read, theirs_to_write = os.pipe()
        theirs_to_read, ours_to_write = os.pipe()

        def hand_over() -> None:
            # The protocol's places for what the browser reads and writes; first out of their way.
            ends = [
                fcntl.fcntl(one, fcntl.F_DUPFD, 100) for one in (theirs_to_read, theirs_to_write)
            ]
            for place, end in enumerate(ends, 3):
                os.dup2(end, place)

        self._process = subprocess.Popen(
            [chromium() or "chromium", *_OPTIONS, f"--user-data-dir={profile}", "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            close_fds=False,
            preexec_fn=hand_over,
        )
        os.close(theirs_to_read)
        os.close(theirs_to_write)
        self._reader, self._writer = os.fdopen(ours_to_read, "rb"), os.fdopen(ours_to_write, "wb")
        self._unread = b""
        self._number = 0
        self._session = ""
        self.complaints: list[str] = []
        self.requests: list[str] = []
        [target] = [
            one
            for one in self._until(lambda: self.command("Target.getTargets")["targetInfos"])
            if one["type"] == "page"
        ]
        attached = self.command("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.command(f"{domain}.enable")
        # Another program's window may not take the keyboard away.
        self.command("Emulation.setFocusEmulationEnabled", enabled=True)

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait()
        self._reader.close()
        self._writer.close()

    def command(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of one command of the protocol."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._writer.write(json.dumps(message).encode() + b"\0")
        self._writer.flush()
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return dict(answer["result"])
            self._note(answer)

    def open(self, page: Path, address: str = "") -> None:
        """Load a page from its file, and wait until its graphs can be drawn."""
        self.command("Page.navigate", url="about:blank")
        self.command("Page.navigate", url=f"{page.as_uri()}{address}")
        self.wait_for(
            "document.readyState === 'complete' && !!document.querySelector('svg, .plot')"
        )

    def size(self, width: int, height: int) -> None:
        """Give the page another size, in its own pixels."""
        self.command(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def ask(self, expression: str) -> Any:
        """The value of an expression of JavaScript, awaited."""
        result = self.command(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait_for(self, expression: str) -> None:
        """Wait until an expression is true."""
        self._until(lambda: self.ask(expression), expression)

    def mouse(
        self, kind: str, x: float, y: float, clicks: int = 0, *, has_shift: bool = False
    ) -> None:
        """One event of the mouse: mouseMoved, mousePressed or mouseReleased."""
        button = "none" if kind == "mouseMoved" and not clicks else "left"
        self.command(
            "Input.dispatchMouseEvent",
            type=kind,
            x=x,
            y=y,
            button=button,
            buttons=int(button == "left" and kind != "mouseReleased"),
            clickCount=clicks,
            modifiers=8 * has_shift,
        )

    def click(self, x: float, y: float, clicks: int = 1, *, has_shift: bool = False) -> None:
        """Press and release, after moving there."""
        self.mouse("mouseMoved", x, y)
        for number in range(1, clicks + 1):
            self.mouse("mousePressed", x, y, number, has_shift=has_shift)
            self.mouse("mouseReleased", x, y, number, has_shift=has_shift)

    def key(self, name: str) -> None:
        """Press and release one key."""
        text = {"Enter": "\r"}.get(name, name if len(name) == 1 else "")
        self.command("Input.dispatchKeyEvent", type="keyDown", key=name, text=text)
        self.command("Input.dispatchKeyEvent", type="keyUp", key=name)

    def _note(self, event: dict[str, Any]) -> None:
        method, told = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(told["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning"):
            self.complaints.append(json.dumps(told["args"]))
        elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.complaints.append(json.dumps(told["entry"]))
        elif method == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            block = os.read(self._reader.fileno(), 1 << 20)
            assert block, "the browser has ended"
            self._unread += block
        message, _, self._unread = self._unread.partition(b"\0")
        return dict(json.loads(message))

    def _until(self, answer: Callable[[], Any], what: str = "the browser to begin") -> Any:
        end = time.monotonic() + WAIT_S
        while not (found := answer()):
            assert time.monotonic() < end, f"waited in vain for {what}"
            time.sleep(0.02)
        return found
