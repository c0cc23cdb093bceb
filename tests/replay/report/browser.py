"""A headless Chromium, driven through its DevTools protocol on two pipes."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

TIMEOUT_S = 60.0
DRAWN = "document.body && document.body.dataset.drawn !== undefined"


class Tab:
    """One page at one width."""

    def __init__(self, reads: int, writes: int) -> None:
        self._reads, self._writes = reads, writes
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.complaints: list[str] = []
        """What the console or the browser's log said."""
        self.requests: list[str] = []
        """Of what lies outside of the page."""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Runtime", "Log", "Network", "Page"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Ask the browser for something and wait for the answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        message |= {} if self._session is None else {"sessionId": self._session}
        os.write(self._writes, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer)
                return answer["result"]

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + TIMEOUT_S
        while b"\0" not in self._buffer:
            assert select.select([self._reads], [], [], max(end - time.monotonic(), 0))[0], "the browser is silent"
            self._buffer += os.read(self._reads, 1 << 20)
        text, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(text)
        params = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown" | "Log.entryAdded":
                self.complaints.append(json.dumps(params)[:2000])
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                self.complaints.append(json.dumps(params)[:2000])
            case "Network.requestWillBeSent" if not params["request"]["url"].startswith(("data:", "blob:")):
                self.requests.append(params["request"]["url"])
        return message

    def open(self, path: Path, width: int, *, height: int = 900, dark: bool = False, drawn: bool = True) -> None:
        """Show a file, all figures `drawn` where it has some."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.send("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self.send("Page.navigate", url=path.resolve().as_uri())
        self.wait(DRAWN if drawn else "document.readyState === 'complete' && document.body")

    def wait(self, condition: str) -> None:
        """Until an expression is true."""
        end = time.monotonic() + TIMEOUT_S
        while not self.value(f"!!({condition})"):
            assert time.monotonic() < end, (condition, self.complaints)
            time.sleep(0.05)

    def value(self, expression: str) -> Any:
        """Of a JavaScript expression."""
        result = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    @contextmanager
    def frame(self) -> Iterator[None]:
        """Talk to the frame inside the page, all its figures drawn."""
        outer = self._session
        targets = self.send("Target.getTargets")["targetInfos"]
        found = (target["targetId"] for target in targets if target["url"] == "about:srcdoc")
        self._session = self.send("Target.attachToTarget", targetId=next(found), flatten=True)["sessionId"]
        try:
            for domain in ("Runtime", "Log", "Network"):
                self.send(f"{domain}.enable")
            self.wait(DRAWN)
            yield
        finally:
            self._session = outer

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, x, y, button="left", clickCount=1)

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """What is shown, or all of the page."""
        import base64

        shown = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shown["data"]))


@contextmanager
def tab(profile: Path) -> Iterator[Tab]:
    """A browser for as long as it is used. Skips the test where none is installed."""
    browser = next((path for name in ("chromium", "google-chrome") if (path := shutil.which(name))), None)
    if browser is None:
        pytest.skip("no chromium on this machine: pages are not looked at in a browser")
    (to_read, to_write), (from_read, from_write) = os.pipe(), os.pipe()
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe"]
    # The browser reads at 3 and writes at 4.
    command = f'exec "$@" 3<&{to_read} 4>&{from_write}'
    process = subprocess.Popen(
        ["bash", "-c", command, "bash", browser, *options, f"--user-data-dir={profile}"],
        pass_fds=(to_read, from_write),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield Tab(from_read, to_write)
    finally:
        process.terminate()
        process.wait(timeout=TIMEOUT_S)
        for end in (to_read, to_write, from_read, from_write):
            os.close(end)
