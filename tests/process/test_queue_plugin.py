# SPDX-License-Identifier: Apache-2.0
"""The queue in the shape that serving frameworks' native storage plugins have: batches of named keys and memoryviews
go in, one eventfd tells, completions come out key by key. A class of that shape is written here over the C calls,
and held to its contract against a real daemon."""
import ctypes as c
import os
import select
import subprocess

import pytest

from conftest import BIN
from every_call import GET, PUT, QUEUE_EXISTS, Done, GetParts, Iovec, PutParts, Request
from pool_client import Key, LIB, Pool

REMOVE, REPLACE = 7, 1


class Plugin:
    """event_fd(), submit_batch_get/set/exists/delete() -> future id, drain_completions() ->
    [(id, ok, error, [bool] or None)], close()."""

    def __init__(self, socket):
        self.pool = Pool(socket)
        self.lib = c.CDLL(LIB)
        self.lib.fm_queue_complete.restype = c.c_int64
        self.lib.fm_error_text.restype = self.lib.fm_error_detail.restype = c.c_char_p
        self.queue, self.ns, self.pending = c.c_void_p(), bytes(range(32)), {}
        self.pool.check(self.lib.fm_queue_create(self.pool.handle, None, c.byref(self.queue)))

    def event_fd(self):
        return self.lib.fm_queue_fd(self.queue)

    def _keys(self, names):
        keys = (Key * len(names))()
        for key, name in zip(keys, names):
            self.pool.check(self.lib.fm_opaque_key(self.ns, name.encode(), c.c_size_t(len(name.encode())),
                                                   c.byref(key)))
        return keys

    def _submit(self, op, names, views=None):
        keys, n = self._keys(names), len(names)
        request = Request(c.sizeof(Request), op, 0, 0, n)
        held = [keys, views]
        if views is not None:
            buffers = [(c.c_char * len(view)).from_buffer(view) for view in views]
            parts = [Iovec(c.addressof(b), len(b)) for b in buffers]
            items = (GetParts * n)() if op == GET else (PutParts * n)()
            for item, key, part in zip(items, keys, parts):
                item.key, item.parts, item.n_parts = key, c.pointer(part), 1
                item.flags = 0 if op == GET else REPLACE
            setattr(request, "gets" if op == GET else "puts", items)
            request.ns = self.ns
            held += [buffers, parts, items]
        else:
            results = (c.c_int * n)()
            request.keys, request.results = keys, results
            held.append(results)
        number = c.c_uint64()
        self.pool.check(self.lib.fm_queue_submit(self.queue, c.byref(request), c.byref(number)))
        self.pending[number.value] = (op, held)  # what the queue writes to stays alive
        return number.value

    def submit_batch_get(self, names, views):
        return self._submit(GET, names, views)

    def submit_batch_set(self, names, views):
        return self._submit(PUT, names, views)

    def submit_batch_exists(self, names):
        return self._submit(QUEUE_EXISTS, names)

    def submit_batch_delete(self, names):
        return self._submit(REMOVE, names)

    def drain_completions(self):
        done, out = (Done * 16)(), []
        while n := self.pool.check(self.lib.fm_queue_complete(self.queue, done, c.c_size_t(16))):
            for one in done[:n]:
                op, held = self.pending.pop(one.id)
                error = self.lib.fm_error_text(int(one.result)).decode() if one.result < 0 else ""
                results = held[-1]
                hits = None
                if op == GET:
                    hits = [not item.result and item.copied == item.length for item in results]
                elif op == QUEUE_EXISTS:
                    hits = [not result for result in results]
                out.append((one.id, one.result >= 0, error, hits))
        return out

    def close(self):
        self.lib.fm_queue_destroy(self.queue)
        self.pool.detach()


@pytest.fixture
def plugin(tmp_path):
    reader, writer = os.pipe()
    socket = f"{tmp_path}/pool"
    daemon = subprocess.Popen([f"{BIN}/fabricmgrd", "--socket", socket, "--size", "32M", "--memory", "memfd",
                               "--ready-fd", str(writer)], pass_fds=[writer], stderr=subprocess.DEVNULL)
    os.close(writer)
    assert os.read(reader, 1)
    one = Plugin(socket)
    yield one
    one.close()
    daemon.terminate()
    assert daemon.wait(60) == 0
    os.close(reader)


def wait(plugin, wanted):
    """Completions of @wanted ids, told by the descriptor alone."""
    got = {}
    while set(got) != set(wanted):
        assert select.select([plugin.event_fd()], [], [], 60)[0], "nobody woke us"
        os.read(plugin.event_fd(), 8)
        got.update({one[0]: one[1:] for one in plugin.drain_completions()})
    return got


def test_the_contract(plugin):
    names = [f"model@{i:08x}@0@{i * 7919:064x}" for i in range(24)]
    data = [bytearray(os.urandom(300000)) for _ in names]
    assert wait(plugin, [first := plugin.submit_batch_exists(names)])[first] == (True, "", [False] * 24)
    # Several at once, all in flight.
    sets = [plugin.submit_batch_set(names[i:i + 4], data[i:i + 4]) for i in range(0, 20, 4)]
    assert len(set(sets)) == 5
    assert all(done == (True, "", None) for done in wait(plugin, sets).values())
    back = [bytearray(b"\xa5" * 300000) for _ in names]
    gets = [plugin.submit_batch_get(names[i:i + 8], back[i:i + 8]) for i in range(0, 24, 8)]
    done = wait(plugin, gets)
    assert [hit for one in gets for hit in done[one][2]] == [True] * 20 + [False] * 4
    assert all(done[one][:2] == (True, "") for one in gets)
    assert back[:20] == data[:20]
    assert all(view == b"\xa5" * 300000 for view in back[20:])  # a miss leaves its buffer as it was
    # A value of another length is no hit, and what was set again is the new one.
    short = bytearray(1000)
    assert wait(plugin, [one := plugin.submit_batch_get(names[:1], [short])])[one][2] == [False]
    data[3] = bytearray(b"new" * 100000)
    wait(plugin, [plugin.submit_batch_set(names[3:4], data[3:4])])
    assert wait(plugin, [one := plugin.submit_batch_get(names[3:4], back[3:4])])[one][2] == [True]
    assert back[3] == data[3]
    wait(plugin, [plugin.submit_batch_delete(names[:10])])
    assert wait(plugin, [one := plugin.submit_batch_exists(names)])[one][2] == [False] * 10 + [True] * 10 + [False] * 4
    assert plugin.drain_completions() == []
    assert not select.select([plugin.event_fd()], [], [], 0)[0]


def test_what_does_not_fit_fails_by_name(plugin):
    big = bytearray((4 << 20) + 1)
    assert wait(plugin, [one := plugin.submit_batch_set(["a"], [big])])[one] == \
        (False, "a documented limit would be exceeded", None)
    assert wait(plugin, [one := plugin.submit_batch_exists(["a"])])[one][2] == [False]
