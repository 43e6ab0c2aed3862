// SPDX-License-Identifier: Apache-2.0
/*
 * fabricctl top: what the pool does between two looks, as a live screen (ncurses) or once as text.
 * Called by main.c. Invariant: the terminal is as it was when this returns, also after an error.
 */
#include <ncurses.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "fabricctl.h"

enum { CTRL_C = 3, LINES_MAX = 64, LINE_BYTES = CTL_LINE_BYTES };

/* One look at the pool. */
struct look {
	struct fm_pool_info info;
	struct timespec at;
	struct fm_client_info *clients;
	int64_t n_clients;
	struct ctl_tenants *tenants;
};

struct frame {
	char lines[LINES_MAX][LINE_BYTES];
	int n;
};

static int look(struct ctl *ctl, struct look *out)
{
	*out = (struct look){.info.size = sizeof(out->info)};
	if (fm_pool_info(ctl->pool, &out->info))
		return -1;
	clock_gettime(CLOCK_MONOTONIC, &out->at);
	out->clients = ctl_clients(ctl, &out->n_clients);
	out->tenants = out->clients ? ctl_tenants(ctl) : NULL;
	return out->tenants ? 0 : -1;
}

static double seconds_between(const struct look *before, const struct look *now)
{
	double seconds = (double)(now->at.tv_sec - before->at.tv_sec) +
			 (double)(now->at.tv_nsec - before->at.tv_nsec) / 1e9;

	return seconds > 1e-3 ? seconds : 1e-3;
}

struct rates {
	double stages, seals, duplicates, discards, evictions;
};

static struct rates rates_of(const struct look *before, const struct look *now)
{
	double seconds = seconds_between(before, now);
	const struct fm_pool_info *a = &before->info, *b = &now->info;

	return (struct rates){
		.stages = (double)(b->stages - a->stages) / seconds,
		.seals = (double)(b->seals - a->seals) / seconds,
		.duplicates = (double)(b->duplicates - a->duplicates) / seconds,
		.discards = (double)(b->discards - a->discards) / seconds,
		.evictions = (double)(b->evictions - a->evictions) / seconds,
	};
}

static void __attribute__((format(printf, 2, 3))) add(struct frame *frame, const char *format, ...)
{
	va_list args;

	if (frame->n == LINES_MAX)
		return;
	va_start(args, format);
	vsnprintf(frame->lines[frame->n++], LINE_BYTES, format, args);
	va_end(args);
}

/* Who holds most stands first. */
static int by_holds(const void *a, const void *b)
{
	const struct fm_client_info *x = a, *y = b;
	uint64_t of_x = (uint64_t)x->leases + x->staged, of_y = (uint64_t)y->leases + y->staged;

	if (of_x != of_y)
		return of_x < of_y ? 1 : -1;
	return x->id < y->id ? -1 : x->id > y->id;
}

static void draw(struct frame *frame, const struct look *before, struct look *now)
{
	const struct fm_pool_info *info = &now->info;
	struct rates rates = rates_of(before, now);
	double share = info->total_bytes ? (double)info->used_bytes / (double)info->total_bytes : 0;
	char used[32], total[32], bar[41];
	int n;

	for (int i = 0; i < 40; i++)
		bar[i] = i < (int)(share * 40 + 0.5) ? '#' : '.';
	bar[40] = '\0';
	frame->n = 0;
	add(frame, "fabricmgr %s  %s, %s, %s%s", fm_version(), info->rung, info->loop, info->policy,
	    info->is_draining ? "  DRAINING" : "");
	add(frame, "memory  [%s] %5.1f %%  %s of %s", bar, 100 * share,
	    ctl_bytes(info->used_bytes, used), ctl_bytes(info->total_bytes, total));
	add(frame, "blocks  %llu sealed, %llu staging, %llu quarantine, %llu removed, at most %llu",
	    (unsigned long long)info->blocks_sealed, (unsigned long long)info->blocks_staging,
	    (unsigned long long)info->blocks_quarantine, (unsigned long long)info->blocks_removed,
	    (unsigned long long)info->entries_max);
	add(frame,
	    "each s  %.1f staged, %.1f sealed, %.1f duplicates, %.1f discarded, %.1f evicted",
	    rates.stages, rates.seals, rates.duplicates, rates.discards, rates.evictions);
	add(frame, "%s", "");
	n = ctl_tenant_lines(now->tenants, frame->lines + frame->n, LINES_MAX - frame->n - 1);
	frame->n += n;
	if (n)
		add(frame, "%s", "");
	add(frame, "%6s %8s %6s %8s %8s  %-10s %-12s %s", "client", "pid", "uid", "leases",
	    "staged", "mode", "tenant", "name");
	qsort(now->clients, (size_t)now->n_clients, sizeof(*now->clients), by_holds);
	for (int64_t i = 0; i < now->n_clients; i++)
		add(frame, "%6u %8u %6u %8u %8u  %-10s %-12s %s", now->clients[i].id,
		    now->clients[i].pid, now->clients[i].uid, now->clients[i].leases,
		    now->clients[i].staged, ctl_client_mode(&now->clients[i]),
		    ctl_tenant_name(now->tenants, &now->clients[i]), now->clients[i].name);
}

static int print_once(struct ctl *ctl, const struct look *before, struct look *now)
{
	struct rates rates = rates_of(before, now);
	struct frame frame;
	json_t *status;

	if (ctl->is_json) {
		status = ctl_status_json(ctl);
		return status ? ctl_print(json_pack("{s:f, s:{s:f, s:f, s:f, s:f, s:f}, s:o}",
						    "seconds", seconds_between(before, now),
						    "each_second", "stages", rates.stages, "seals",
						    rates.seals, "duplicates", rates.duplicates,
						    "discards", rates.discards, "evictions",
						    rates.evictions, "status", status))
			      : ctl_fail("top");
	}
	draw(&frame, before, now);
	for (int i = 0; i < frame.n; i++)
		puts(frame.lines[i]);
	return CTL_OK;
}

static void show(const struct frame *frame)
{
	erase();
	for (int i = 0; i < frame->n && i < LINES - 1; i++)
		mvaddnstr(i, 0, frame->lines[i], COLS);
	mvaddnstr(LINES - 1, 0, "q: end", COLS);
	refresh();
}

/* Looks again and again; 0 when the person ends it, -1 when the pool does not answer. */
static int live(struct ctl *ctl, struct look *before)
{
	struct frame frame;
	struct look now;
	int key;

	for (;;) {
		if (look(ctl, &now))
			return -1;
		draw(&frame, before, &now);
		free(before->clients);
		free(before->tenants);
		*before = now;
		do {
			show(&frame);
			timeout((int)ctl->interval * 1000);
			key = getch();
		} while (key == KEY_RESIZE);
		if (key == 'q' || key == 'Q' || key == CTRL_C)
			return 0;
	}
}

static int run_live(struct ctl *ctl, struct look *before)
{
	SCREEN *screen;
	int err;

	if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO)) {
		fm_fail(FM_ERR_UNSUPPORTED, "a live screen needs a terminal: give --once here");
		return ctl_fail("top");
	}
	screen = newterm(NULL, stdout, stdin);
	if (!screen) {
		fm_fail(FM_ERR_UNSUPPORTED, "the terminal (TERM) is not known here: give --once");
		return ctl_fail("top");
	}
	raw(); /* Ctrl-C is a key, so that nothing ends this with the terminal changed */
	noecho();
	curs_set(0);
	keypad(stdscr, TRUE);
	err = live(ctl, before);
	endwin();
	delscreen(screen);
	return err ? ctl_fail("top") : CTL_OK;
}

int ctl_top(struct ctl *ctl)
{
	struct look before, now = {0};
	int result;

	if (look(ctl, &before))
		return ctl_fail("top");
	if (!ctl->is_once && !ctl->is_json) {
		result = run_live(ctl, &before);
	} else {
		sleep(ctl->interval);
		result = look(ctl, &now) ? ctl_fail("top") : print_once(ctl, &before, &now);
	}
	free(before.clients);
	free(now.clients);
	free(before.tenants);
	free(now.tenants);
	return result;
}
