#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The daemon's page in a real browser (`make check-browser`): headless Chromium, driven through chromedriver.

What the browser renders is compared with what /metrics says; it may log no error and ask for
nothing but the daemon. A page with both faults shows first that they would be noticed.
"""
import argparse
import base64
import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import time

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FAULTY = "data:text/html,<script>nothing.there</script><img src='http://127.0.0.1:9/picture'>"
READ = """return {
  rows: [...document.querySelectorAll('table tr')].map(row => [...row.cells].map(cell => cell.innerText)),
  shown: [...document.querySelectorAll('h1, progress, table, td')].every(one => {
    const box = one.getBoundingClientRect(); return box.width > 0 && box.height > 0; }),
  right: getComputedStyle(document.querySelector('td.n')).textAlign,
  wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  progress: document.querySelector('progress').value, heading: document.querySelector('h1').innerText,
  loaded: performance.timeOrigin };"""


class Browser:
    """One session of chromedriver: the W3C WebDriver protocol over HTTP."""

    def __init__(self, port):
        self.port = port
        options = {"args": ["--headless=new", "--no-sandbox", "--window-size=1280,1000", "--disable-gpu",
                            "--disable-background-networking", "--disable-dev-shm-usage"]}
        answer = self.call("POST", "/session", {"capabilities": {"alwaysMatch": {
            "browserName": "chrome", "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}}})
        self.base = f"/session/{answer['sessionId']}"

    def call(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request(method, path, json.dumps(body) if body is not None else None,
                           {"Content-Type": "application/json"})
        response = connection.getresponse()
        value = json.loads(response.read())["value"]
        connection.close()
        assert response.status == 200, value
        return value

    def open(self, url):
        self.call("POST", f"{self.base}/url", {"url": url})

    def run(self, script):
        return self.call("POST", f"{self.base}/execute/sync", {"script": script, "args": []})

    def log(self, kind):
        return self.call("POST", f"{self.base}/se/log", {"type": kind})

    def errors(self):
        return [entry["message"] for entry in self.log("browser") if entry["level"] == "SEVERE"]

    def requests(self):
        """URLs that the pages asked for since the last call."""
        events = [json.loads(entry["message"])["message"] for entry in self.log("performance")]
        return [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]

    def screenshot(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.call("GET", f"{self.base}/screenshot")))

    def end(self):
        self.call("DELETE", self.base)


def metrics(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return {name: value for name, value in re.findall(r"^fabricmgr_(\S+?(?:\{.*\})?) (\d+)$", text, re.M)
            if not name.startswith("build_info")}


def look(browser, port):
    """What the page shows, once it and /metrics were asked without a change between."""
    for _ in range(20):
        before, page, after = metrics(port), browser.run(READ), metrics(port)
        if before == after:
            return page, before
    sys.exit("the figures do not stand still")


def check(browser, port, pool, picture):
    origin = f"http://127.0.0.1:{port}"
    browser.open(FAULTY)
    assert browser.errors() and "http://127.0.0.1:9/picture" in browser.requests(), "faults would not be noticed"
    browser.open(f"{origin}/")
    page, figures = look(browser, port)
    shown = {row[0]: row[1] for row in page["rows"][1:]}
    assert page["rows"][0] == ["figure", "value", "what it is"] and all(row[2] for row in page["rows"])
    assert shown == figures, set(shown.items()) ^ set(figures.items())
    assert page["heading"].startswith("fabricmgrd ") and page["shown"], page
    assert page["right"] == "right" and page["wide"] <= 0, page
    used = 100 * int(figures["pool_used_bytes"]) / int(figures["pool_bytes"])
    assert abs(page["progress"] - used) < 0.06 and used > 20
    browser.screenshot(picture)
    # It loads itself again: nobody has to press a key to see what happened since.
    for n in range(100, 110):
        pool.release(pool.put(n, 65536))
    end = time.monotonic() + 60
    while True:
        later, figures = look(browser, port)
        if later["loaded"] != page["loaded"]:
            break
        assert time.monotonic() < end, "the page did not load itself again"
        time.sleep(0.2)
    assert {row[0]: row[1] for row in later["rows"][1:]}["pool_seals_total"] == figures["pool_seals_total"] != \
        shown["pool_seals_total"]
    browser.run("document.querySelector('a').click()")
    end = time.monotonic() + 30
    while "# HELP fabricmgr_pool_bytes" not in browser.run("return document.body.innerText"):
        assert time.monotonic() < end, "the link does not lead to the text for Prometheus"
    errors, asked = browser.errors(), browser.requests()
    assert not errors, errors
    assert asked and all(url.startswith(f"{origin}/") for url in asked), asked
    print(f"check-browser: passed: {len(shown)} figures, {len(asked)} requests, all of them the daemon's own; {picture}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", default=f"{TOP}/build/release/bin")
    parser.add_argument("--picture", default=f"{TOP}/build/browser/page.png", help="where the screenshot goes")
    options = parser.parse_args()
    os.environ["FABRICMGR_BIN"] = options.bin
    sys.path.insert(0, f"{TOP}/tests/process")
    import conftest  # pylint: disable=import-outside-toplevel
    import pool_client  # pylint: disable=import-outside-toplevel
    os.makedirs(os.path.dirname(options.picture), exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fabricmgr-browser-") as folder:
        system = conftest.System(folder)
        browser = None
        try:
            daemon = system.daemon("16M", "--metrics", "127.0.0.1:0", "--redis", f"unix:{folder}/redis.sock")
            port = int(daemon.wait_for(r"metrics: http://127\.0\.0\.1:(\d+)$")[1])
            pool = pool_client.Pool(system.socket)
            for n in range(100):
                pool.release(pool.put(n, 65536))
            driver = system.start("chromedriver", "--port=0", env={"HOME": folder, "TMPDIR": folder})
            browser = Browser(int(driver.wait_for(r"started successfully on port (\d+)")[1]))
            check(browser, port, pool, options.picture)
        finally:
            if browser:
                browser.end()
            for process in reversed(system.started):
                process.kill()
                process.process.wait()


if __name__ == "__main__":
    main()
