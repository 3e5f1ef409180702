"""A headless Chromium, driven over a pipe with the DevTools protocol: no port, no download, no other package.

Used by ``report_open.py`` and by ``tests/analysis/browser``. https://chromedevtools.github.io/devtools-protocol/
"""

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
    "--no-first-run", "--no-default-browser-check", "--disable-extensions", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--force-color-profile=srgb", "--mute-audio",
)  # fmt: skip
# Chromium reads requests at descriptor 3 and writes replies at 4; numbers above avoid that one overwrites the other.
LAUNCHER = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
)
LIMIT_S = 60.0
"""For anything: what takes longer hangs."""
KEYS = {"Enter": 13, "Escape": 27, "Tab": 9, "Space": 32}


class BrowserError(Exception):
    """Chromium said no, ended, or took too long."""


def executable() -> Path | None:
    """``$CHROMIUM``, else the first one on the path."""
    found = next(
        (path for name in (os.environ.get("CHROMIUM", ""), *NAMES) if name and (path := shutil.which(name))), None
    )
    return Path(found) if found else None


class Chromium:
    """One browser with one page, as a context manager."""

    def __init__(self, binary: Path, *, width: int = 1280, height: int = 900) -> None:
        self._profile = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        self.console: list[str] = []
        """Errors and warnings of the page, uncaught exceptions too."""
        self.requests: list[str] = []
        """Every address that the page asked for."""
        self._events: deque[dict[str, Any]] = deque()
        self._unread = b""
        self._number = 0
        self._session: str | None = None
        to_read, self._write = _pipe()
        self._read, to_write = _pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, str(to_read), str(to_write), str(binary), *FLAGS,
             f"--user-data-dir={self._profile.name}", f"--window-size={width},{height}", "about:blank"],
            pass_fds=(to_read, to_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        os.close(to_read)
        os.close(to_write)
        try:
            self._session = self.call("Target.attachToTarget", targetId=self._page(), flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Network", "Log"):
                self.call(f"{domain}.enable")
            self.resize(width, height)
        except BaseException:
            self.close()
            raise

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its answer.

        Raises:
            BrowserError: it was refused, or the browser is gone.
        """
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session and not method.startswith(("Target.", "Browser.")):
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + LIMIT_S
        while True:
            answer = self._next(deadline, method)
            if answer.get("id") != self._number:
                self._note(answer)
            elif "error" in answer:
                raise BrowserError(f"{method}: {answer['error']['message']}")
            else:
                result: dict[str, Any] = answer["result"]
                return result

    def open(self, address: str) -> None:
        """Load a page and wait for its load event."""
        self._events.clear()
        self.call("Page.navigate", url=address)
        deadline = time.monotonic() + LIMIT_S
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._note(self._next(deadline, f"load of {address}"))

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression; a promise is awaited.

        Raises:
            BrowserError: it threw.
        """
        answer = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True, userGesture=True
        )
        if "exceptionDetails" in answer:
            thrown = answer["exceptionDetails"]
            raise BrowserError(thrown.get("exception", {}).get("description") or thrown["text"])
        return answer["result"].get("value")

    def wait(self, script: str, *, limit_s: float = LIMIT_S) -> Any:
        """Ask again until the expression is true; its value."""
        deadline = time.monotonic() + limit_s
        while not (value := self.run(script)):
            if time.monotonic() > deadline:
                raise BrowserError(f"still not true after {limit_s:g} s: {script}")
            time.sleep(0.02)
        return value

    def press(self, key: str) -> None:
        """A key of the keyboard, to whatever has the focus."""
        text = {"Enter": "\r", "Space": " "}.get(key, "")
        named = {"key": " " if key == "Space" else key, "code": key, "windowsVirtualKeyCode": KEYS[key]}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **named)
        self.call("Input.dispatchKeyEvent", type="keyUp", **named)

    def click(self, selector: str) -> None:
        """The mouse, in the middle of the first element that matches."""
        x, y = self.hover(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def hover(self, selector: str) -> tuple[float, float]:
        """Move the mouse there, and the element into the window; where that is."""
        x, y = self.run(
            f"(() => {{ const found = document.querySelector({json.dumps(selector)});"
            " found.scrollIntoView({block: 'center'}); const box = found.getBoundingClientRect();"
            " return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        return x, y

    def resize(self, width: int, height: int) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def prefer(self, scheme: str) -> None:
        """``light`` or ``dark``, as the system's setting would."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self, path: Path, *, whole: bool = True) -> Path:
        """A PNG of the page, from its top to its end unless ``whole`` is false."""
        picture = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(picture["data"]))
        return path

    def close(self) -> None:
        try:
            os.close(self._write)  # Chromium ends when its pipe does
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        finally:
            os.close(self._read)
            self._profile.cleanup()

    def _page(self) -> str:
        """The first page, which may come later than the browser's first answer."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            for target in self.call("Target.getTargets")["targetInfos"]:
                if target["type"] == "page":
                    return str(target["targetId"])
            if time.monotonic() > deadline:
                raise BrowserError(f"no page within {LIMIT_S:g} s")
            time.sleep(0.02)

    def _next(self, deadline: float, doing: str) -> dict[str, Any]:
        while b"\0" not in self._unread:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._read], [], [], left)[0]:
                raise BrowserError(f"{doing}: no answer within {LIMIT_S:g} s")
            if not (data := os.read(self._read, 1 << 20)):
                raise BrowserError(f"{doing}: the browser ended with status {self._process.poll()}")
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def _note(self, event: dict[str, Any]) -> None:
        if "method" not in event:
            return
        self._events.append(event)
        if handler := HANDLERS.get(event["method"]):
            handler(self, event["params"])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _pipe() -> tuple[int, int]:
    """A pipe whose ends are neither 3 nor 4."""
    import fcntl

    ends: Sequence[int] = os.pipe()
    moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return moved[0], moved[1]


def _console(browser: Chromium, said: dict[str, Any]) -> None:
    if said["type"] in ("error", "warning", "assert"):
        browser.console.append(" ".join(str(a.get("value", a.get("description"))) for a in said["args"]))


def _thrown(browser: Chromium, said: dict[str, Any]) -> None:
    details = said["exceptionDetails"]
    browser.console.append(details.get("exception", {}).get("description") or details["text"])


def _logged(browser: Chromium, said: dict[str, Any]) -> None:
    if said["entry"]["level"] in ("error", "warning"):
        browser.console.append(said["entry"]["text"])


HANDLERS: dict[str, Callable[[Chromium, dict[str, Any]], None]] = {
    "Runtime.consoleAPICalled": _console,
    "Runtime.exceptionThrown": _thrown,
    "Log.entryAdded": _logged,
    "Network.requestWillBeSent": lambda browser, said: browser.requests.append(said["request"]["url"]),
}
