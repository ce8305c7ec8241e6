"""The page of `omnitts dump report` in a headless Chromium, where there is one."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from omnitts.dump.format import paths
from omnitts.dump.report import write_report
from omnitts.encoding import AudioOptions, write_audio
from tests.dump.conftest import make_dump, write

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--window-size=1400,1000"),
    *("--autoplay-policy=no-user-gesture-required", "--remote-debugging-pipe"),
)

PROBE = """
(async () => {
  const wait = milliseconds => new Promise(done => setTimeout(done, milliseconds));
  const first = () => document.querySelector("tbody tr:not([hidden]) .id").textContent;
  const sorted = column => {
    const header = document.querySelectorAll("thead th")[column];
    header.querySelector("button").click();
    return [first(), header.getAttribute("aria-sort")];
  };
  while (!document.querySelector("audio")) await wait(50);
  const seen = {players: document.querySelectorAll("audio").length};
  seen.painted = document.querySelector("tbody canvas").height;
  seen.byMean = [sorted(2), sorted(2)];
  seen.toCheck = sorted(5);
  seen.bySeconds = [sorted(1), sorted(1)];
  seen.byName = sorted(0);
  seen.sortedColumns = document.querySelectorAll("th[aria-sort]:not([aria-sort=none])").length;
  const audio = document.querySelector("tbody audio");
  audio.muted = true;
  await audio.play();
  await wait(300);
  Object.assign(seen, {played: audio.currentTime, duration: audio.duration});
  const find = document.getElementById("find");
  find.value = "NUMBER 11";
  find.dispatchEvent(new Event("input"));
  seen.found = [first(), document.getElementById("shown").textContent];
  return JSON.stringify(seen);
})()
"""


class Browser:
    """Chromium over the pipe of its developer tools: JSON that ends in a zero byte, on descriptors 3 and 4."""

    def __init__(self, profile: Path):
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        shell = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        self._process = subprocess.Popen(
            ["bash", "-c", shell, "bash", CHROMIUM, *OPTIONS, f"--user-data-dir={profile}"],
            pass_fds=(theirs_in, theirs_out),
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._read, self._number = b"", 0
        self.events: list[dict] = []

    def call(self, method: str, session: str | None = None, **parameters) -> dict:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        os.write(self._out, json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def wait(self, event: str) -> None:
        while event not in [seen["method"] for seen in self.events]:
            self.events.append(self._next())

    def _next(self) -> dict:
        while b"\0" not in self._read:
            more = os.read(self._in, 1 << 16)
            assert more, "the browser is gone"
            self._read += more
        message, _, self._read = self._read.partition(b"\0")
        return json.loads(message)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._out)
        os.close(self._in)


@pytest.fixture
def browser(tmp_path):
    opened = Browser(tmp_path / "profile")
    yield opened
    opened.close()


def folder_of(tmp_path: Path, count: int) -> Path:
    tone = np.sin(np.arange(24000) / 20).astype(np.float32) / 2
    for number in range(count):
        made = make_dump(f"line-{number:02}", frames=20 + number, seed=number, text=f"Number {number}.")
        if number == 9:
            made.logprobs[:] -= np.float16(5)
        write(tmp_path, made)
        write_audio(tmp_path / f"line-{number:02}.wav", tone, 24000, AudioOptions())
    return tmp_path


@pytest.mark.skipif(CHROMIUM is None or os.name != "posix", reason="needs Chromium")
def test_the_page_sorts_finds_and_plays(tmp_path, browser):
    page = tmp_path / "report.html"
    dumps = paths(folder_of(tmp_path, 30))
    assert write_report(page, dumps, {}, tmp_path).dumps == 30
    target = browser.call("Target.createTarget", url="about:blank")["targetId"]
    session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
    for domain in ("Runtime", "Log", "Network", "Page"):
        browser.call(f"{domain}.enable", session)
    browser.call("Page.navigate", session, url=page.as_uri())
    browser.wait("Page.loadEventFired")
    answer = browser.call("Runtime.evaluate", session, expression=PROBE, awaitPromise=True)
    seen = json.loads(answer["result"]["value"])
    assert 0 < seen["players"] < 30 and seen["painted"] == 17  # only the rows that are looked at
    assert seen["byMean"][0] == ["line-09", "ascending"] and seen["byMean"][1][1] == "descending"
    assert seen["toCheck"] == ["line-09", "descending"]
    assert seen["bySeconds"] == [["line-00", "ascending"], ["line-29", "descending"]]
    assert seen["byName"] == ["line-00", "ascending"] and seen["sortedColumns"] == 1
    assert seen["played"] > 0 and seen["duration"] == pytest.approx(1, abs=0.2)
    assert seen["found"] == ["line-11", "1 of 30 shown"]
    said = [e for e in browser.events if e["method"] in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled")]
    assert said + [e for e in browser.events if e["method"] == "Log.entryAdded"] == []
    asked = [e["params"]["request"]["url"] for e in browser.events if e["method"] == "Network.requestWillBeSent"]
    assert [url for url in asked if not url.startswith(("data:", "file:"))] == []
