# SPDX-License-Identifier: Apache-2.0
"""fabricmgrd --metrics: Prometheus text that a strict reader takes, the page, health; and that alert
rules, dashboard and documentation name what is really there."""
import http.client
import json
import re
import socket
import subprocess
import time
from html.parser import HTMLParser

import pytest
import yaml

from conftest import BIN, TOP
from test_redis import Wire

RULES = f"{TOP}/packaging/prometheus/fabricmgr-rules.yaml"
DASHBOARD = f"{TOP}/packaging/grafana/fabricmgr.json"
PAGE = f"{TOP}/Documentation/metrics.md"


def ask(port, path="/metrics", method="GET", body=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request(method, path, body)
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response, text


def parse(text):
    """{name: (type, help, {labels: value})}, by the exposition format 0.0.4 and no more."""
    assert text.endswith("\n")
    metrics, name = {}, None
    for line in text.splitlines():
        if match := re.fullmatch(r"# HELP ([a-z_]+) (\S.*\.)", line):
            name = match[1]
            assert name not in metrics, f"{name} twice"
            metrics[name] = [None, match[2], {}]
        elif match := re.fullmatch(r"# TYPE ([a-z_]+) (counter|gauge)", line):
            assert match[1] == name and metrics[name][0] is None
            metrics[name][0] = match[2]
            assert (match[2] == "counter") == name.endswith("_total"), name
        else:
            match = re.fullmatch(r'([a-z_]+)(?:\{((?:[a-z]+="(?:[^"\\\n]|\\["\\n])*",?)+)\})? (\d+)', line)
            assert match and match[1] == name and metrics[name][0], line
            assert match[2] not in metrics[name][2], line
            metrics[name][2][match[2]] = int(match[3])
    assert all(values for _, _, values in metrics.values())
    return metrics


def values(port):
    return {name: found[None] if set(found) == {None} else found
            for name, (_, _, found) in parse(ask(port)[1]).items()}


@pytest.fixture
def served(system):
    daemon = system.daemon("16M", "--metrics", "127.0.0.1:0", "--redis", f"unix:{system.folder}/redis.sock")
    daemon.port = int(daemon.wait_for(r"metrics: http://127\.0\.0\.1:(\d+)$")[1])
    return daemon


@pytest.fixture
def complete(system):
    """With all that has figures."""
    daemon = system.daemon("16M", "--metrics", "127.0.0.1:0", "--redis", f"unix:{system.folder}/redis.sock",
                           "--nvme", f"{system.folder}/log", "--nvme-size", "257M")
    daemon.port = int(daemon.wait_for(r"metrics: http://127\.0\.0\.1:(\d+)$")[1])
    return daemon


def test_figures_of_nvme_are_those_of_the_daemon(system, complete):
    wire = Wire(f"{system.folder}/redis.sock")
    for i in range(5):
        assert wire.ask("SET", f"a{i}", "x" * 9000) == "OK"
    while system.control("status")["nvme"]["stored"] < 5:
        time.sleep(0.02)
    system.control("evict")
    assert wire.ask("GET", "a3") == b"x" * 9000
    wire.close()
    found, nvme = values(complete.port), system.control("status")["nvme"]
    assert (nvme["stored"], nvme["fetched"]) == (5, 1)
    counters = {"stored", "stored_bytes", "fetched", "fetch_misses", "reclaimed", "skipped", "read_errors", "write_errors",
                "flush_errors", "checksum_errors"}
    names = {"block_bytes": "used_bytes"}
    shown = {key: found[f"fabricmgr_nvme_{names.get(key, key)}" + "_total" * (key in counters)] for key in nvme
             if key not in ("path", "rung", "rung_reason", "is_durable", "table_bytes")}
    assert shown == {key: int(nvme[key]) for key in shown} and len(shown) == 19
    assert f'rung="{nvme["rung"]}"' in next(iter(found["fabricmgr_nvme_info"]))


def test_the_text_is_prometheus_and_agrees_with_the_pool(system, served):
    wire = Wire(f"{system.folder}/redis.sock")
    for i in range(3):
        assert wire.ask("SET", f"a{i}", "x" * 5000) == "OK"
    assert wire.ask("DEL", "a2") == 1
    assert wire.ask("MGET", "a0", "a1", "a2") == [b"x" * 5000] * 2 + [None]
    assert wire.ask("EXISTS", "a0") == 1
    wire.ask("PING")
    while system.control("status")["blocks"]["removed"]:  # freed a moment later
        time.sleep(0.02)
    response, _ = ask(served.port)
    assert response.status == 200
    assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    found, status, info = values(served.port), system.control("status"), system.control("info")
    assert found["fabricmgr_pool_bytes"] == status["total_bytes"] == 16 << 20
    assert found["fabricmgr_pool_used_bytes"] == status["used_bytes"] > 0
    assert {re.fullmatch('state="(.*)"', state)[1]: n for state, n in found["fabricmgr_pool_blocks"].items()} \
        == {name: status["blocks"][name] for name in ("sealed", "staging", "offered", "quarantine", "removed")}
    assert found["fabricmgr_pool_blocks"]['state="sealed"'] == 2
    for name, n in status["counters"].items():
        assert found[f"fabricmgr_pool_{name}_total"] == n
    assert found["fabricmgr_pool_seals_total"] == 3
    assert found["fabricmgr_pool_entries_max"] == info["entries_max"]
    assert found["fabricmgr_pool_clients"] == 2  # the front end and the reader of these figures
    assert f'rung="{info["memory"]}",reason="{info["memory_reason"]}"' in found["fabricmgr_pool_memory_info"]
    assert f'policy="{info["policy"]}"' in found["fabricmgr_pool_policy_info"]
    assert found["fabricmgr_redis_connections"] == found["fabricmgr_redis_accepted_total"] == 1
    assert (found["fabricmgr_redis_hits_total"], found["fabricmgr_redis_misses_total"]) == (2, 1)
    assert found["fabricmgr_redis_held_bytes"] == 5000 and found["fabricmgr_redis_name_bytes"] > 0
    assert found["fabricmgr_redis_commands_total"] == 7
    wire.close()


def test_without_redis_there_are_no_figures_of_it(system):
    daemon = system.daemon("16M", "--metrics", "127.0.0.1:0")
    port = int(daemon.wait_for(r"metrics: http://127\.0\.0\.1:(\d+)$")[1])
    found = values(port)
    assert len(found) > 10 and not any("redis" in name for name in found)
    assert daemon.stop() == 0


class Rows(HTMLParser):
    """Cells of the page's table, and everything that would load something."""

    def __init__(self):
        super().__init__()
        self.rows, self.loads, self.cell = [], [], False

    def handle_starttag(self, tag, attrs):
        if tag == "tr":
            self.rows.append([])
        self.cell = tag == "td"
        if self.cell:
            self.rows[-1].append("")
        self.loads += [tag] if tag in ("script", "img", "link", "iframe") else []
        self.loads += [value for name, value in attrs if name in ("src", "href") and not value.startswith("/")]

    def handle_endtag(self, tag):
        self.cell = False

    def handle_data(self, data):
        if self.cell:
            self.rows[-1][-1] += data


def test_the_page_shows_the_same_and_loads_nothing(served):
    response, text = ask(served.port, "/")
    assert response.status == 200 and response.headers["Content-Type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in response.headers["Content-Security-Policy"]
    page = Rows()
    page.feed(text)
    assert page.loads == []
    shown = {row[0] for row in page.rows if row}
    expected = {name.removeprefix("fabricmgr_") + (f"{{{labels}}}" if labels else "")
                for name, (_, _, found) in parse(ask(served.port)[1]).items() for labels in found}
    assert shown == expected - {name for name in expected if name.startswith("build_info")}


def test_health_and_what_is_not_there(served):
    assert ask(served.port, "/healthz")[1] == "ok\n"
    assert ask(served.port, "/metrics", "HEAD")[0].status == 200
    for path in ("/x", "/metrics/", "//", "/healthz/../metrics"):
        assert ask(served.port, path)[0].status == 404
    for method in ("POST", "PUT", "DELETE"):
        response, _ = ask(served.port, "/", method, "x" * 1000)
        assert response.status == 405 and response.headers["Allow"] == "GET, HEAD"


def test_hostile_requests_end_and_the_daemon_serves_on(served):
    for data in (b"\0" * 100, b"GET " + b"/x" * 100000 + b" HTTP/1.1\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
                 b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 20000 + b"\r\n",
                 b"POST / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", served.port), 20) as peer:
            try:
                peer.sendall(data)
                peer.shutdown(socket.SHUT_WR)
                while peer.recv(65536):
                    pass
            except OSError:
                pass
    idle = [socket.create_connection(("127.0.0.1", served.port), 20) for _ in range(20)]
    assert ask(served.port, "/healthz")[0].status == 200
    for peer in idle:
        peer.close()
    assert served.stop() == 0


def test_addresses(system):
    def refused(*flags):
        out = subprocess.run([f"{BIN}/fabricmgrd", "--socket", system.socket, "--size", "16M", *flags],
                             capture_output=True, text=True, check=False, timeout=20)
        assert out.stderr.count("\n") == 1
        return out.returncode, out.stderr
    status, said = refused("--metrics", "0.0.0.0:0")
    assert status == 2 and "not loopback" in said and "--metrics-behind-proxy" in said
    with socket.create_server(("127.0.0.1", 0)) as taken:
        status, said = refused("--metrics", f"127.0.0.1:{taken.getsockname()[1]}")
        assert status == 1 and "cannot listen there" in said
    daemon = system.daemon("16M", "--metrics", "0.0.0.0:0", "--metrics-behind-proxy")
    assert ask(int(daemon.wait_for(r"metrics: http://0\.0\.0\.0:(\d+)$")[1]), "/healthz")[0].status == 200
    assert daemon.stop() == 0


# ---- rules, dashboard, documentation ----

TOKEN = re.compile(r'\s*(?:(?P<string>"(?:[^"\\]|\\.)*")|(?P<range>\[(?:\d+[smhd]|\$__rate_interval)\])|'
                   r"(?P<number>\d+(?:\.\d+)?)|(?P<word>[a-zA-Z_]\w*)|(?P<mark>=~|!~|!=|==|>=|<=|[-+*/<>=(){},]))")
FUNCTIONS = {"rate", "increase", "min_over_time", "sum", "by", "and", "on", "or", "label_values"}


def read_expression(text):
    """Names of metrics and {(metric, label)} of an expression; fails on what is not PromQL's alphabet."""
    tokens, at, depth, names, labels = [], 0, [], set(), set()
    while text[at:].strip():
        match = TOKEN.match(text, at)
        assert match, f"{text!r} at {at}"
        tokens.append((match.lastgroup, match[match.lastgroup]))
        at = match.end()
    for i, (kind, token) in enumerate(tokens):
        after = tokens[i + 1][1] if i + 1 < len(tokens) else ""
        if token in "({" and kind == "mark":
            depth.append((token, tokens[i - 1][1] if i else ""))
        elif token in ")}" and kind == "mark":
            assert depth and depth.pop()[0] == {")": "(", "}": "{"}[token], text
        elif kind == "word" and depth and depth[-1][0] == "{":
            assert after in ("=", "=~", "!=", "!~"), text
            labels.add((depth[-1][1], token))
        elif kind == "word" and depth and depth[-1][1] in ("by", "on"):
            assert token == "instance", text
        elif kind == "word" and token not in FUNCTIONS:
            names.add(token)
    assert not depth, text
    return names, labels


def rules():
    with open(RULES, encoding="utf-8") as file:
        groups = yaml.safe_load(file)
    assert set(groups) == {"groups"}
    for group in groups["groups"]:
        assert set(group) == {"name", "rules"}
        yield from group["rules"]


def expressions():
    yield from (rule["expr"] for rule in rules())
    with open(DASHBOARD, encoding="utf-8") as file:
        board = json.load(file)
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in board["panels"]:
        assert panel["title"] and set(panel["gridPos"]) == {"h", "w", "x", "y"}
        yield from (target["expr"] for target in panel["targets"])
    yield re.fullmatch(r"label_values\((\w+), instance\)",
                       board["templating"]["list"][1]["query"])[1]


def test_rules_and_dashboard_name_what_is_there(complete):
    metrics = parse(ask(complete.port)[1])
    used = set()
    for text in expressions():
        names, labels = read_expression(text)
        assert names, text
        used |= names
        for name, label in labels:
            if label in ("instance", "job"):
                continue
            assert any(f'{label}="' in (found or "") for found in metrics[name][2]), (text, label)
        for name in names:
            if name.endswith("_total"):
                assert re.search(rf"(rate|increase)\({name}\b", text), text
    assert used - {"up"} <= set(metrics)
    shown = {name for name in set(metrics) if name in "".join(expressions())}
    assert shown == set(metrics), set(metrics) - shown


def test_states_and_rungs_of_the_rules_are_real(served):
    found = values(served.port)
    states = {re.fullmatch('state="(.*)"', state)[1] for state in found["fabricmgr_pool_blocks"]}
    text = "".join(rule["expr"] for rule in rules())
    named = {state for part in re.findall(r'state=~?"([^"]*)"', text) for state in part.split("|")}
    assert named and named <= states
    with open(f"{TOP}/libfabricmgr/mem/region.c", encoding="utf-8") as file:
        assert all(f'"{rung}"' in file.read() for rung in re.findall(r'rung!="([^"]*)"', text))


def test_every_rule_is_complete_and_documented():
    with open(PAGE, encoding="utf-8") as file:
        documented = set(re.findall(r"^\| `(Fabricmgr\w+)` \| \S", file.read(), re.M))
    named = set()
    for rule in rules():
        assert {"alert", "expr", "labels", "annotations"} <= set(rule) <= \
            {"alert", "expr", "labels", "annotations", "for"}
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description"}
        assert re.fullmatch(r"[1-9]\d*[mh]", rule.get("for", "1m"))
        named.add(rule["alert"])
    assert named == documented


def test_every_figure_is_documented(complete):
    metrics = parse(ask(complete.port)[1])
    with open(PAGE, encoding="utf-8") as file:
        rows = re.findall(r"^\| ((?:`[a-z_]+` ?)+)\| (counter|gauge) \|", file.read(), re.M)
    documented = {name: kind for names, kind in rows for name in re.findall(r"`([a-z_]+)`", names)}
    assert documented == {name.removeprefix("fabricmgr_"): kind for name, (kind, _, _) in metrics.items()}


@pytest.mark.parametrize("text", ["rate(x[5m]", "x{a=b", "x$", "x{a}", 'sum by (pod) (x)', "x[5]"])
def test_a_wrong_expression_is_found(text):
    with pytest.raises(AssertionError):
        read_expression(text)
