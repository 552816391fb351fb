"""A real browser for tests: Chromium without a window, driven through its DevTools protocol over two pipes.

with Browser() as browser:
    browser.open(file, width=390, height=800, dark=True)
    browser.run("document.title"), browser.press("Tab"), browser.picture(file)
"""

import base64
import fcntl
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
import warnings
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
KEYS = {"Enter": (13, "\r"), " ": (32, " ")}  # keys that type a character
CODES = {"Tab": 9, "Escape": 27, "End": 35, "Home": 36}  # of others
CODES |= {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
SECONDS = 60  # for one answer


def program() -> str:
    """The browser; without one the test is skipped, with a warning."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        why = f"NOT CHECKED IN A BROWSER: none of {', '.join(NAMES)} is installed (apt-get install chromium)"
        warnings.warn(why, stacklevel=2)
        pytest.skip(why)
    return found


class Browser:
    def __init__(self):
        command = [program(), "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        ends = [*os.pipe(), *os.pipe()]
        theirs_in, ours_out, ours_in, theirs_out = (fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in ends)
        for end in ends:
            os.close(end)
        self.process = subprocess.Popen(
            [*command, f"--user-data-dir={self.folder.name}"],
            preexec_fn=lambda: (os.dup2(theirs_in, 3), os.dup2(theirs_out, 4)),
            pass_fds=(3, 4),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in), os.close(theirs_out)
        self.ours_in, self.ours_out, self.read = ours_in, ours_out, b""
        self.numbers, self.session, self.events = itertools.count(1), None, []

    def __enter__(self):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(self, *error):
        self.process.kill()
        self.process.wait()
        os.close(self.ours_in), os.close(self.ours_out)
        self.folder.cleanup()

    def call(self, method, **params):
        """A command of the protocol, and its answer. Events that come meanwhile are kept in `events`."""
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.ours_out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self.events.append(answer)

    def _next(self):
        until = time.monotonic() + SECONDS
        while b"\0" not in self.read:
            ready, _, _ = select.select([self.ours_in], [], [], max(0, until - time.monotonic()))
            if not ready:
                raise TimeoutError("the browser does not answer")
            self.read += os.read(self.ours_in, 1 << 16) or b'{"id": 0}\0'
        message, _, self.read = self.read.partition(b"\0")
        return json.loads(message)

    def open(self, file, width=1280, height=900, dark=False, still=False):
        """Show a file in a window of this size."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        features = {"prefers-color-scheme": "dark" if dark else "light"}
        features["prefers-reduced-motion"] = "reduce" if still else "no-preference"
        of = [{"name": name, "value": value} for name, value in features.items()]
        self.call("Emulation.setEmulatedMedia", features=of)
        self.events.clear()
        self.call("Page.navigate", url=Path(file).as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def run(self, script):
        """The value of an expression of JavaScript."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def press(self, key):
        """Press and release a key."""
        code, text = KEYS.get(key, (0, ""))
        of = {"key": key, "code": key, "windowsVirtualKeyCode": code or CODES.get(key, 0)}
        self.call("Input.dispatchKeyEvent", type="keyDown", **of, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **of)

    def point(self, selector, click=False, tap=False):
        """Move the mouse to the middle of an element, scrolled into sight; click or tap there."""
        box = f"document.querySelector({json.dumps(selector)})"
        self.run(f"{box}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        x, y = self.run(f"(r => [r.x + r.width / 2, r.y + r.height / 2])({box}.getBoundingClientRect())")
        if tap:
            self.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
            self.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
            return
        at = {"x": x, "y": y}
        self.call("Input.dispatchMouseEvent", type="mouseMoved", **at)
        if click:
            for kind in ("mousePressed", "mouseReleased"):
                self.call("Input.dispatchMouseEvent", type=kind, **at, button="left", clickCount=1)

    def picture(self, file):
        """What the window shows, as a PNG."""
        Path(file).write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))
