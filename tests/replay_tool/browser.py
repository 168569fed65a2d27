"""A headless Chromium, driven over its own DevTools pipe: no driver and no library besides the browser."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from typing_extensions import Self

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
TIMEOUT_S = 60


def chromium() -> str | None:
    """The browser's path, None when there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page of one headless browser. Use as a context manager."""

    def __init__(self, path: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="lmr-browser-")
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        # Chromium reads commands from descriptor 3 and writes answers to 4, each ended by a NUL.
        command = [
            "bash", "-c", f'exec 3<&{to_browser} 4>&{from_browser}; exec "$@"', "bash", path,
            "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            "--disable-dev-shm-usage", "--remote-debugging-pipe", f"--user-data-dir={self._folder.name}",
            "--window-size=1300,1400", "about:blank",
        ]  # fmt: skip
        self._process = subprocess.Popen(
            command, pass_fds=(to_browser, from_browser), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.requests: list[str] = []
        self.errors: list[str] = []

    def __enter__(self) -> Self:
        page = next(item for item in self("Target.getTargets")["targetInfos"] if item["type"] == "page")
        self._session = self("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network"):
            self(f"{domain}.enable")
        return self

    def __exit__(self, *exc: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, 9)
        self._process.wait()
        os.close(self._out)
        os.close(self._in)
        self._folder.cleanup()

    def __call__(self, method: str, **params: Any) -> Any:
        """One command of the DevTools protocol; returns its result."""
        self._number += 1
        number = self._number
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            answer = self._next(deadline)
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]
        raise TimeoutError(method)

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError("the browser does not answer")
            self._buffer += os.read(self._in, 1 << 20)
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(message["params"]["request"]["url"])
        if message.get("method") == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(message["params"]["exceptionDetails"]))
        return message

    def open(self, path: Path) -> None:
        """Shows a file and waits until the page has drawn itself."""
        self("Page.navigate", url=path.as_uri())
        deadline = time.monotonic() + TIMEOUT_S
        while self.value("document.documentElement?.dataset.ready") != "yes":
            assert not self.errors, self.errors
            assert time.monotonic() < deadline, "the page never got ready"
            time.sleep(0.05)

    def value(self, expression: str) -> Any:
        """The JSON value of a script expression."""
        found = self("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def key(self, key: str) -> None:
        """Presses a key, as a person does."""
        codes = {"Enter": 13, "Escape": 27, "Tab": 9}
        text = key if len(key) == 1 else "\r" if key == "Enter" else ""
        for kind in ("keyDown", "keyUp"):
            extra = {"text": text} if text and kind == "keyDown" else {}
            self("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=codes.get(key, 0), **extra)

    def click(self, selector: str) -> None:
        """Clicks the middle of the first element that matches."""
        box = self.value(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            " e.scrollIntoView({block: 'center'});"
            " const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    def dark(self, on: bool) -> None:
        """As if the system preferred dark pages."""
        features = [{"name": "prefers-color-scheme", "value": "dark" if on else "light"}]
        self("Emulation.setEmulatedMedia", features=features)

    def screenshot(self) -> bytes:
        """The upper part of the page at half size, as PNG."""
        clip = {"x": 0, "y": 0, "width": 1300, "height": 1000, "scale": 0.5}
        return base64.b64decode(self("Page.captureScreenshot", format="png", clip=clip)["data"])

    def pdf(self) -> bytes:
        """The page as it prints."""
        return base64.b64decode(self("Page.printToPDF", printBackground=True)["data"])
