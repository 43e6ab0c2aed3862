// SPDX-License-Identifier: Apache-2.0
/*
 * The crash tests' side door into the programs (see fabricmgr_kill_point.h): finds a kill point's
 * step in the shared file, counts it, dies there when told to. Called by FM_KILL_POINT() alone.
 * Invariant: in a build without FM_KILL_POINTS this file is empty.
 */
#include <fabricmgr_kill_point.h>

#ifdef FM_KILL_POINTS

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct fm_kill_file *file; /* NULL: nobody tests */
static int file_fd = -1;
static const char *role;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void open_file(void)
{
	const char *path = getenv("FABRICMGR_KILL_FILE");
	void *memory;

	role = getenv("FABRICMGR_KILL_ROLE");
	if (!role)
		role = "client";
	file_fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
	if (file_fd < 0)
		return;
	memory = mmap(NULL, sizeof(*file), PROT_READ | PROT_WRITE, MAP_SHARED, file_fd, 0);
	if (memory != MAP_FAILED)
		file = memory;
}

/* Steps are added under two locks: threads by the mutex, processes by flock(), which the death of
 * its holder releases. */
static struct fm_kill_step *find(const char *name)
{
	struct fm_kill_step *step = file->steps;
	char wanted[FM_KILL_NAME] = "";

	snprintf(wanted, sizeof(wanted), "%s %s", role, name);
	pthread_mutex_lock(&mutex);
	while (flock(file_fd, LOCK_EX) && errno == EINTR)
		;
	while (step < file->steps + FM_KILL_STEPS && step->name[0] && strcmp(step->name, wanted))
		step++;
	if (step == file->steps + FM_KILL_STEPS)
		abort(); /* more steps than FM_KILL_STEPS: raise it */
	if (!step->name[0])
		memcpy(step->name, wanted, sizeof(wanted));
	flock(file_fd, LOCK_UN);
	pthread_mutex_unlock(&mutex);
	return step;
}

void fm_kill_point(struct fm_kill_site *site)
{
	struct fm_kill_step *step;
	uint32_t armed;

	pthread_once(&once, open_file);
	if (!file)
		return;
	step = atomic_load_explicit(&site->step, memory_order_relaxed);
	if (!step) {
		step = find(site->name);
		atomic_store_explicit(&site->step, step, memory_order_relaxed);
	}
	atomic_fetch_add_explicit(&step->passes, 1, memory_order_relaxed);
	armed = atomic_load_explicit(&step->armed, memory_order_relaxed);
	/* Of two threads that pass, one takes each number down; nothing else is ordered by it. */
	while (armed && !atomic_compare_exchange_weak(&step->armed, &armed, armed - 1))
		;
	if (armed != 1)
		return;
	atomic_fetch_add_explicit(&step->kills, 1, memory_order_relaxed);
	kill(getpid(), SIGKILL);
	for (;;) /* until it arrives */
		pause();
}

bool fm_fault(const char *name)
{
	const char *wanted = getenv("FABRICMGR_FAULT");

	return wanted && !strcmp(wanted, name);
}

#endif
