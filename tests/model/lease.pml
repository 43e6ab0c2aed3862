/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lease protocol, to be searched exhaustively by spin: readers (core/lease.h, pool/read.c), the
 * daemon that evicts and recycles (core/evict.c, core/store.c), a killer, and the memory between
 * them. run.py compiles and runs it; Documentation/design/lease-ordering.md maps steps to lines.
 *
 * Spin is sequentially consistent, real memory is not. So each process owns a buffer of accesses
 * that it has made and the others do not see yet; leave() lets one of them out. Without WEAK they
 * leave in order, and only stores are buffered (x86: TSO). With WEAK a relaxed store overtakes
 * everything but a store to its own address, and reads of a block's bytes may happen late, too; a
 * release store waits for all before it (arm64, C11 release and acquire). A fence waits until the
 * buffer is empty.
 *
 * Invariants, asserted: a reader that was told "acquired" meets the bytes, and the key, of the
 * generation that it acquired; the daemon recycles nothing that is held; when all readers have
 * ended, by themselves or killed, everything can be evicted.
 */
#ifndef READERS
#define READERS 1
#endif
#ifndef ROUNDS		/* acquires tried by each reader, through one entry of its lease table */
#define ROUNDS 2
#endif
#ifndef PASSES		/* of the evictor */
#define PASSES 2
#endif
#define ENTRIES 2	/* of the index; as many slots */
#define NONE 255
#define DAEMON READERS	/* number of its buffer */
#define DEPTH 7		/* of a buffer; who finds it full waits */

/* Memory. Entry: word, key, place (slot). Slot: data, of which the generation is all that matters. */
#define WORD(e) (e)
#define KEY(e) (ENTRIES + (e))
#define PLACE(e) (2 * ENTRIES + (e))
#define DATA(s) (3 * ENTRIES + (s))
#define REGION(r) (4 * ENTRIES + 3 * (r))
#define SLOT(r) (4 * ENTRIES + 3 * (r) + 1)
#define GENERATION(r) (4 * ENTRIES + 3 * (r) + 2)
#define CELLS (4 * ENTRIES + 3 * READERS)

#define FREE 0
#define STAGING 1
#define SEALED 2
#define EVICTING 3
#define MAKE(generation, state) ((generation) * 4 + (state))
#define STATE_OF(word) ((word) & 3)
#define GENERATION_OF(word) ((word) >> 2)

#define RELAXED 0
#define RELEASE 1
#define LATE_READ 2	/* of data; @value is the generation that it must find */

/* The orders in the code, and what planted faults make of them. */
#ifdef FAULT_LEASE_WORDS_RELAXED
#define LEASE_WORD_ORDER RELAXED
#else
#define LEASE_WORD_ORDER RELEASE
#endif
#ifdef FAULT_LEASE_REGION_RELAXED
#define LEASE_REGION_ORDER RELAXED
#else
#define LEASE_REGION_ORDER RELEASE
#endif
#ifdef FAULT_DROP_RELAXED
#define DROP_ORDER RELAXED
#else
#define DROP_ORDER RELEASE
#endif
#ifdef FAULT_SEAL_RELAXED
#define SEAL_ORDER RELAXED
#else
#define SEAL_ORDER RELEASE
#endif

typedef buffer {
	byte n;
	byte at[DEPTH];
	byte value[DEPTH];
	byte order[DEPTH];
	bit ready[DEPTH];	/* may leave now; follows from the other fields */
};

byte memory[CELLS];
buffer buffers[READERS + 1];
bool is_dead[READERS], has_ended[READERS];

/* Ghosts: what the properties speak of. The protocol does not read them. */
byte held[READERS];		/* generation that the reader holds; 0: none */
byte key_of[16];		/* by generation */

/* ---- memory ---- */

inline find_ready(p)
{
	for (i : 0 .. DEPTH - 1) {
#ifdef WEAK
		buffers[p].ready[i] = (i < buffers[p].n && (i == 0 || buffers[p].order[i] != RELEASE));
		for (j : 0 .. DEPTH - 1) {
			if
			:: j < i && buffers[p].at[j] == buffers[p].at[i] -> buffers[p].ready[i] = 0
			:: else
			fi
		}
#else
		buffers[p].ready[i] = (i == 0 && buffers[p].n > 0);
#endif
	}
	i = 0;
	j = 0
}

inline append(p, address, what, how)
{
	d_step {
		buffers[p].n < DEPTH;
		buffers[p].at[buffers[p].n] = address;
		buffers[p].value[buffers[p].n] = what;
		buffers[p].order[buffers[p].n] = how;
		buffers[p].n++;
		find_ready(p)
	}
}

inline leave(p, k)
{
	d_step {
		buffers[p].ready[k];
		if
		:: buffers[p].order[k] == LATE_READ ->
			assert(memory[buffers[p].at[k]] == buffers[p].value[k])
		:: else -> memory[buffers[p].at[k]] = buffers[p].value[k]
		fi;
		for (i : k .. DEPTH - 2) {
			buffers[p].at[i] = buffers[p].at[i + 1];
			buffers[p].value[i] = buffers[p].value[i + 1];
			buffers[p].order[i] = buffers[p].order[i + 1]
		}
		buffers[p].at[DEPTH - 1] = 0;
		buffers[p].value[DEPTH - 1] = 0;
		buffers[p].order[DEPTH - 1] = 0;
		buffers[p].n--;
		find_ready(p)
	}
}

/* Memory as @p sees it: its own stores at once. */
inline load(p, address, into)
{
	d_step {
		into = memory[address];
		for (i : 0 .. DEPTH - 1) {
			if
			:: i < buffers[p].n && buffers[p].at[i] == address &&
			   buffers[p].order[i] != LATE_READ -> into = buffers[p].value[i]
			:: else
			fi
		}
		i = 0
	}
}

inline fence(p)
{
	buffers[p].n == 0
}

active proctype memory_system()
{
	byte i, j;

end:	do
	:: leave(DAEMON, 0)
	:: leave(0, 0)
#if READERS > 1
	:: leave(1, 0)
#endif
#ifdef WEAK
	:: leave(DAEMON, 1)
	:: leave(DAEMON, 2)
	:: leave(DAEMON, 3)
	:: leave(DAEMON, 4)
	:: leave(DAEMON, 5)
	:: leave(DAEMON, 6)
	:: leave(0, 1)
	:: leave(0, 2)
	:: leave(0, 3)
	:: leave(0, 4)
	:: leave(0, 5)
	:: leave(0, 6)
#if READERS > 1
	:: leave(1, 1)
	:: leave(1, 2)
	:: leave(1, 3)
	:: leave(1, 4)
	:: leave(1, 5)
	:: leave(1, 6)
#endif
#endif
	od
}

/* ---- the reader ---- */

/* R8. When it happens is open, so one read stands for any number. */
inline read_data()
{
#ifdef WEAK
	append(me, DATA(place), GENERATION_OF(word), LATE_READ)
#else
	load(me, DATA(place), seen);
	assert(seen == GENERATION_OF(word))
#endif
}

proctype reader(byte me)
{
	byte i, j, round, entry, word, key, place, seen;

	{
		do
		:: atomic { round == ROUNDS -> break }
		:: atomic {
			/* fm_index_find(). The buckets are a hint: any entry may be met in them. */
			round < ROUNDS ->
			round++;
			if
			:: entry = 0
			:: entry = 1
			fi;
			load(me, WORD(entry), word);					/* R1 */
			if
			:: STATE_OF(word) != SEALED -> goto next
			:: else
			fi
		   }
			/* It wants the key that it finds: with another, nothing would follow. */
			load(me, KEY(entry), key);					/* R2 */
			/* fm_lease_take() */
			load(me, PLACE(entry), place);					/* R3 */
			append(me, SLOT(me), place, LEASE_WORD_ORDER);			/* R4 */
			append(me, GENERATION(me), GENERATION_OF(word), LEASE_WORD_ORDER);
			append(me, REGION(me), 1, LEASE_REGION_ORDER);			/* R5 */
			atomic {
#ifndef FAULT_NO_READER_FENCE
				fence(me);						/* R6 */
#endif
#ifndef FAULT_NO_RECHECK
				load(me, WORD(entry), seen);				/* R7 */
				if
				:: seen != word -> goto drop
				:: else
				fi;
#endif
				held[me] = GENERATION_OF(word);
				assert(key_of[GENERATION_OF(word)] == key)
			}
			read_data();							/* R8 */
drop:			atomic {
				held[me] = 0;
				append(me, REGION(me), 0, DROP_ORDER)			/* R9 */
			}
next:			atomic { word = 0; key = 0; place = 0; seen = 0; entry = 0 }
		od
	} unless { is_dead[me] };
	has_ended[me] = true
}

#ifdef KILL
/* Kills any reader before any of its steps, or none. What it has stored still reaches memory. */
active proctype killer()
{
	if
	:: is_dead[0] = true
#if READERS > 1
	:: is_dead[1] = true
#endif
	:: skip
	fi
}
#endif

/* ---- the daemon ---- */

/* fm_store_owner_remove(): after the kernel has closed a dead client's socket. */
inline clean_up()
{
	for (r : 0 .. READERS - 1) {
		if
#if defined(FAULT_FORGETS_THE_LIVING)
		:: !is_removed[r] -> is_removed[r] = true
#elif !defined(FAULT_NO_CLEAN_UP)
		:: is_dead[r] && has_ended[r] && buffers[r].n == 0 && !is_removed[r] ->
			is_removed[r] = true
#endif
		:: else
		fi
	}
	r = 0
}

inline mark()
{
	for (e : 0 .. ENTRIES - 1) {
		if
		:: is_victim[e] -> append(DAEMON, WORD(e), MAKE(generation_of[e], EVICTING), RELAXED)
		:: else
		fi
	}
	e = 0
}

/* One lease in scan_leases(): the table is the client's, so everything in it is checked. */
inline scan_one(who)
{
	atomic {
		seen = 0;
		if
		:: !is_removed[who] -> load(DAEMON, REGION(who), seen)		/* E3 */
		:: else
		fi
	}
	if
	:: seen ->
		load(DAEMON, SLOT(who), slot);					/* E4 */
		atomic {
			load(DAEMON, GENERATION(who), seen);
			if
			:: entry_at[slot] != NONE && generation_of[entry_at[slot]] == seen ->
				is_leased[entry_at[slot]] = true
			:: else
			fi;
			seen = 0;
			slot = 0
		}
	:: else
	fi
}

inline scan()
{
	d_step {
		is_leased[0] = false;
		is_leased[1] = false
	}
	scan_one(0);
#if READERS > 1
	scan_one(1)
#endif
}

/* The end of sacrifice(): what is leased gets its old word back, the rest is freed. */
inline free_or_restore()
{
	for (e : 0 .. ENTRIES - 1) {
		if
		:: is_victim[e] && is_leased[e] ->					/* E5 */
			append(DAEMON, WORD(e), MAKE(generation_of[e], SEALED), RELEASE);
			is_victim[e] = false
		:: is_victim[e] && !is_leased[e] ->
			d_step {
				for (r : 0 .. READERS - 1) {
					assert(is_dead[r] || held[r] != generation_of[e])
				}
				r = 0;
				entry_at[slot_of[e]] = NONE;
#ifndef FAULT_SAME_GENERATION
				generation_of[e] = next_generation;
				next_generation++
#endif
			}
			append(DAEMON, WORD(e), MAKE(generation_of[e], FREE), RELEASE)	/* E6 */
		:: else
		fi
	}
	e = 0
}

#define IS_RESIDENT(k) (key_of[generation_of[1 - e]] == (k) && !is_victim[1 - e])

/*
 * fm_store_stage(), the writer's data, fm_store_seal(). The writer hears of the slot from the
 * daemon's ring (release, acquire) and answers the same way, so its store stands between theirs.
 */
inline recycle()
{
	for (e : 0 .. ENTRIES - 1) {
		if
		:: is_victim[e] ->
			if
			:: entry_at[0] == NONE -> slot = 0
			:: entry_at[1] == NONE -> slot = 1
			fi;
			if
			:: !IS_RESIDENT(0) -> key = 0
			:: !IS_RESIDENT(1) -> key = 1
			fi;
			d_step {
				entry_at[slot] = e;
				slot_of[e] = slot;
				key_of[generation_of[e]] = key;
				is_victim[e] = false
			}
			append(DAEMON, KEY(e), key, RELEASE);				/* E7 */
			append(DAEMON, PLACE(e), slot, RELEASE);
			append(DAEMON, WORD(e), MAKE(generation_of[e], STAGING), RELEASE);
			append(DAEMON, DATA(slot), generation_of[e], RELEASE);		/* E8 */
			append(DAEMON, WORD(e), MAKE(generation_of[e], SEALED), SEAL_ORDER); /* E9 */
			d_step { slot = 0; key = 0 }
		:: else
		fi
	}
	e = 0
}

proctype evictor()
{
	byte i, j, e, r, pass, seen, slot, key;
	byte entry_at[ENTRIES], slot_of[ENTRIES], generation_of[ENTRIES], next_generation = 3;
	bool is_removed[READERS], is_leased[ENTRIES], is_victim[ENTRIES];

	d_step {
		entry_at[1] = 1;
		slot_of[1] = 1;
		generation_of[0] = 1;
		generation_of[1] = 2
	}
	do
	:: atomic { pass == PASSES -> break }
	:: atomic {
		pass < PASSES ->
		pass++;
		clean_up();
		if
		:: is_victim[0] = true
		:: is_victim[1] = true
		:: d_step { is_victim[0] = true; is_victim[1] = true }
		fi;
#ifndef FAULT_SCAN_BEFORE_MARK
		mark()									/* E1 */
#endif
	   }
#ifdef FAULT_SCAN_BEFORE_MARK
		scan();
		atomic { mark() }
#endif
#ifndef FAULT_NO_EVICTOR_FENCE
		fence(DAEMON);								/* E2 */
#endif
#ifndef FAULT_SCAN_BEFORE_MARK
		scan();
#endif
		atomic {
			free_or_restore();
			recycle()
		}
	od;
	/* In the end nobody holds anything, and so nothing is held back. */
	for (r : 0 .. READERS - 1) {
		has_ended[r] && buffers[r].n == 0
	}
	atomic { r = 0; clean_up() }
	scan();
	assert(!is_leased[0] && !is_leased[1])
}

init {
	byte r;

	atomic {
		memory[WORD(0)] = MAKE(1, SEALED);
		memory[WORD(1)] = MAKE(2, SEALED);
		memory[KEY(1)] = 1;
		memory[PLACE(1)] = 1;
		memory[DATA(0)] = 1;
		memory[DATA(1)] = 2;
		key_of[2] = 1;
		for (r : 0 .. READERS - 1) {
			run reader(r)
		}
		run evictor()
	}
}
