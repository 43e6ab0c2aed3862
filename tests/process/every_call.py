# SPDX-License-Identifier: Apache-2.0
"""A client of the pool with every way of writing and of reading, for tests that compare them.

EveryCall is a Pool (pool_client.py) whose put_by[...] and get_by[...] are the ways: each writes, or
returns as bytes (None: not there), the block of a number. Invariant: a way that returns bytes has read
them under the library's own rules, and released what it leased.
"""
import ctypes as c

from pool_client import EXISTS, Block, Key, Pool, Seal, bytes_of, key_of

NOT_FOUND = -2
SECONDS = 10**9
NAMESPACE = bytes(32)


class Iovec(c.Structure):
    _fields_ = [("base", c.c_void_p), ("length", c.c_size_t)]


class Put(c.Structure):
    _fields_ = [("key", Key), ("parent", c.POINTER(Key)), ("data", c.c_void_p),
                ("length", c.c_uint64), ("flags", c.c_uint32), ("result", c.c_int)]


class PutParts(c.Structure):
    _fields_ = [("key", Key), ("parent", c.POINTER(Key)), ("parts", c.POINTER(Iovec)),
                ("n_parts", c.c_uint32), ("flags", c.c_uint32), ("result", c.c_int)]


class Get(c.Structure):
    _fields_ = [("key", Key), ("data", c.c_void_p), ("capacity", c.c_uint64),
                ("length", c.c_uint64), ("result", c.c_int)]


class GetParts(c.Structure):
    _fields_ = [("key", Key), ("parts", c.POINTER(Iovec)), ("n_parts", c.c_uint32),
                ("flags", c.c_uint32), ("offset", c.c_uint64), ("length", c.c_uint64),
                ("copied", c.c_uint64), ("is_verified", c.c_uint32), ("result", c.c_int)]


class Request(c.Structure):
    _fields_ = [("size", c.c_uint32), ("op", c.c_uint32), ("user_data", c.c_uint64),
                ("deadline_ns", c.c_uint64), ("n", c.c_size_t), ("keys", c.POINTER(Key)),
                ("results", c.POINTER(c.c_int)), ("blocks", c.POINTER(Block)),
                ("gets", c.POINTER(GetParts)), ("puts", c.POINTER(PutParts)), ("ns", c.c_char_p)]


class Done(c.Structure):
    _fields_ = [("id", c.c_uint64), ("user_data", c.c_uint64), ("result", c.c_int64)]


class Hint(c.Structure):
    _fields_ = [("size", c.c_uint32), ("priority", c.c_int32), ("pin_ns", c.c_uint64),
                ("expected_ns", c.c_uint64)]


class GroupSeal(c.Structure):
    _fields_ = [("block", c.POINTER(Block)), ("key", Key), ("parent", c.POINTER(Key)),
                ("result", c.c_int), ("flags", c.c_uint32)]


MATCH, FETCH, QUEUE_EXISTS, ACQUIRE, GET, PUT = range(1, 7)
LONGEST = 4 << 20


def halves(address, length):
    """Two parts of unequal length, so that a range crosses from one into the other."""
    first = max(1, length // 3)
    if first == length:
        return (Iovec * 1)(Iovec(address, length)), 1
    return (Iovec * 2)(Iovec(address, first), Iovec(address + first, length - first)), 2


class EveryCall(Pool):
    def __init__(self, socket, flags=0, tenant=None):
        super().__init__(socket, flags, tenant)
        for name in ("fm_pool_fetch", "fm_pool_get", "fm_pool_get_parts", "fm_queue_wait",
                     "fm_pool_match_tokens"):
            getattr(self.lib, name).restype = c.c_int64
        self.begin_queue()
        self.room = c.create_string_buffer(LONGEST)
        self.put_by = {"seal": self.put_sealed, "put": self.put_copied, "put_parts": self.put_in_parts,
                       "queue put": self.put_queued, "group": self.put_grouped}
        self.get_by = {"acquire": self.get_leased, "get": self.get_copied,
                       "get_parts": self.get_in_parts, "queue get": self.get_queued,
                       "queue acquire": self.get_queue_leased, "group": self.get_grouped,
                       "fetch and acquire": self.get_fetched}

    def begin_queue(self):
        self.queue = c.c_void_p()
        self.check(self.lib.fm_queue_create(self.handle, None, c.byref(self.queue)))

    def end_queue(self):
        """Its threads have ended when this returns."""
        self.lib.fm_queue_destroy(self.queue)

    def detach(self):
        self.end_queue()
        super().detach()

    # ---- writing ----

    def put_sealed(self, n, length):
        block = self.put(n, length)
        if block:
            self.release(block)

    def put_copied(self, n, length, data=None):
        data = data or bytes_of(n, length)
        put = Put(key_of(n), None, c.cast(c.c_char_p(data), c.c_void_p), length, 0, 0)
        self.check(self.lib.fm_pool_put(self.handle, NAMESPACE, c.byref(put), c.c_size_t(1),
                                        c.c_uint64(5 * SECONDS)))
        return put.result

    def put_in_parts(self, n, length):
        data = c.create_string_buffer(bytes_of(n, length), length)
        parts, n_parts = halves(c.addressof(data), length)
        put = PutParts(key_of(n), None, parts, n_parts, 0, 0)
        self.check(self.lib.fm_pool_put_parts(self.handle, NAMESPACE, c.byref(put), c.c_size_t(1),
                                              c.c_uint64(5 * SECONDS)))

    def put_queued(self, n, length):
        data = c.create_string_buffer(bytes_of(n, length), length)
        parts, n_parts = halves(c.addressof(data), length)
        put = PutParts(key_of(n), None, parts, n_parts, 0, 0)
        self.check(self.ask(PUT, puts=c.pointer(put), ns=NAMESPACE))

    def put_grouped(self, n, length):
        block = self.stage(length)[0]
        c.memmove(block.data, bytes_of(n, length), length)
        seal = GroupSeal(c.pointer(block), key_of(n), None, 0, 0)
        result = self.lib.fm_group_seal(self.handle, NAMESPACE, c.byref(seal), c.c_size_t(1))
        if result == EXISTS:
            self.lib.fm_block_discard(self.handle, c.byref(block), c.c_size_t(1))
            return
        self.check(result)
        self.release(block)

    # ---- reading ----

    def taken(self, block):
        if not block:
            return None
        data = c.string_at(block.data, block.length)
        self.release(block)
        return data

    def get_leased(self, n):
        return self.taken(self.acquire(n))

    def get_copied(self, n):
        get = Get(key_of(n), c.addressof(self.room), LONGEST, 0, 0)
        self.check(self.lib.fm_pool_get(self.handle, c.byref(get), c.c_size_t(1)))
        return self.copied(get.result, get.length)

    def copied(self, result, length):
        if result == NOT_FOUND:
            return None
        self.check(result)
        return c.string_at(self.room, length)

    def parts_of(self, n):
        parts, n_parts = halves(c.addressof(self.room), LONGEST)
        return GetParts(key_of(n), parts, n_parts, 0, 0, 0, 0, 0, 0)

    def get_in_parts(self, n):
        get = self.parts_of(n)
        self.check(self.lib.fm_pool_get_parts(self.handle, c.byref(get), c.c_size_t(1)))
        return self.copied(get.result, get.length)

    def submit(self, op, n=None, deadline_ns=10 * SECONDS, **more):
        """The request's number; where its results go is the caller's to keep."""
        request, number = Request(c.sizeof(Request), op, 7, deadline_ns, 1, **more), c.c_uint64()
        key = key_of(n) if n is not None else None
        if key:
            request.keys = c.pointer(key)
        self.check(self.lib.fm_queue_submit(self.queue, c.byref(request), c.byref(number)))
        return number.value

    def collect(self):
        done = Done()
        got = self.check(self.lib.fm_queue_wait(self.queue, c.byref(done), c.c_size_t(1),
                                                c.c_uint64(20 * SECONDS)))
        assert got == 1 and done.user_data == 7
        return done

    def ask(self, op, n=None, **more):
        self.submit(op, n, **more)
        return self.collect().result

    def get_queued(self, n):
        get = self.parts_of(n)
        self.check(self.ask(GET, gets=c.pointer(get)))
        return self.copied(get.result, get.length)

    def get_queue_leased(self, n):
        block = Block()
        return self.taken(self.check(self.ask(ACQUIRE, n, blocks=c.pointer(block))) and block)

    def get_grouped(self, n):
        block = Block()
        result = self.lib.fm_group_acquire(self.handle, c.byref(key_of(n)), c.c_size_t(1),
                                           c.byref(block))
        if result == NOT_FOUND:
            return None
        self.check(result)
        return self.taken(block)

    def fetch(self, n):
        return self.check(self.lib.fm_pool_fetch(self.handle, c.byref(key_of(n)), c.c_size_t(1),
                                                 c.c_uint64(60 * SECONDS)))

    def get_fetched(self, n):
        return self.get_leased(n) if self.fetch(n) else None

    # ---- the rest ----

    def hint(self, block, pin_s=0):
        hint = Hint(c.sizeof(Hint), 0, pin_s * SECONDS, 0)
        return self.check(self.lib.fm_block_hint(self.handle, c.byref(block), c.byref(hint)))

    def remove(self, n):
        return self.check(self.lib.fm_pool_remove(self.handle, c.byref(key_of(n)), c.c_size_t(1)))


class Layout(c.Structure):
    _fields_ = [(name, c.c_uint32) for name in ("layers", "kv_heads", "head_dim", "tokens_per_block",
                                                "element", "flags")]


class Namespace(c.Structure):
    _fields_ = [("weights", c.c_uint8 * 32), ("layout", Layout),
                *((name, c.c_char_p) for name in ("numerics_id", "position_encoding", "quantisation",
                                                  "adapter", "tenant_salt"))]


def digest_of(lib, **more):
    """The digest of a namespace, with the fields of @more instead of the usual ones."""
    fields = {"weights": b"w" * 32, "numerics_id": b"portable-16/1", "quantisation": b"", "adapter": b"",
              "tenant_salt": b"", "position_encoding": b"rope/theta=10000/dims=64/norm"}
    fields.update({name: value for name, value in more.items() if name not in dict(Layout._fields_)})
    layout = {"layers": 4, "kv_heads": 8, "head_dim": 64, "tokens_per_block": 16, "element": 2, "flags": 0}
    layout.update({name: value for name, value in more.items() if name in layout})
    ns = Namespace((c.c_uint8 * 32)(*fields.pop("weights")), Layout(**layout), **fields)
    out = c.create_string_buffer(32)
    assert lib.fm_namespace_digest(c.byref(ns), out) == 0, lib.fm_error_detail()
    return out.raw


def chain_of(lib, digest, tokens, per_block=16):
    """The keys of the full blocks of @tokens, as an array of Key."""
    n = len(tokens) // per_block
    keys = (Key * n)()
    assert lib.fm_chain_keys(digest, (c.c_uint32 * len(tokens))(*tokens), c.c_size_t(n),
                             c.c_uint32(per_block), None, c.c_size_t(0), keys, None) == 0
    return keys


__all__ = ["EveryCall", "Seal", "Put", "PutParts", "Get", "GetParts", "Iovec", "Hint", "Request", "Done",
           "chain_of", "digest_of", "Namespace", "Layout"]
