/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The objects of the module and what its files offer each other. One file holds one subject; calls
 * reach it through the table in main.c.
 *
 * Locks, outermost first: mmap_lock, fm_objects, region->lock, then i_mmap and page-table locks of
 * the kernel, and at the leaves the spinlocks of event queues and quotas. Reclaim enters in
 * pressure.c with whatever its caller holds, so there fm_objects and region->lock are only tried.
 * Invariant: no user memory is touched under fm_objects or region->lock (faults take both).
 */
#ifndef FM_INTERNAL_H
#define FM_INTERNAL_H

#include <linux/cred.h>
#include <linux/fs.h>
#include <linux/kref.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/rwsem.h>
#include <linux/spinlock.h>
#include <linux/uidgid.h>
#include <linux/wait.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>

#include "fabricmgr.h"
#include "compat.h"

#define FM_ORDER_MAX	 10 /* 4 MiB: what the buddy allocator gives at most on these kernels */
#define FM_ORDER_DEFAULT 9  /* nothing smaller than 2 MiB unless asked for */
#define FM_UNREAD_MAX	 16384 /* deaths that a manager may leave unread while clients come */
#define FM_ORDER_MIN	 4  /* 64 KiB: the kernel counts pins of compound pages exactly */

/* State of a page of a region: free, sealed, or the id of the client that stages it. */
#define FM_STATE_FREE	0
#define FM_STATE_SEALED U32_MAX

/* ---- mmap windows (map.c) ---- */

enum fm_window_kind { FM_WINDOW_READ, FM_WINDOW_WRITE, FM_WINDOW_WORDS, FM_WINDOW_LEASES };

/* A range of the device's file offsets, in pages, that shows one thing. fm_objects. */
struct fm_window {
	enum fm_window_kind kind;
	void *object; /* struct fm_region, or struct fm_client for FM_WINDOW_LEASES */
	unsigned long first;
	unsigned long last; /* 0: not open */
};

/* ---- events (event.c) ---- */

/* A record that may stand in one client's queue. Fields but @record: the queue's lock. */
struct fm_event {
	struct list_head link;
	u64 sequence;
	bool is_queued;
	bool is_owned; /* freed when read; else it belongs to the object that it is part of */
	struct pid *pid;
	kuid_t uid;
	struct fabricmgr_event record;
};

struct fm_events {
	spinlock_t lock;
	struct list_head queue;
	struct list_head waiting; /* ring commands (ring.c) */
	u64 sequence;
	u32 length; /* of the queue */
	bool is_closed;
	struct mutex reader; /* one reader at a time between looking and taking */
	wait_queue_head_t wait;
};

/* ---- regions (region.c, chunk.c, stage.c) ---- */

struct fm_chunk {
	struct page *page; /* region->lock; NULL: reclaim has it */
	u32 *states;	   /* region->lock; one for each page; NULL: all free */
	u32 baseline;	   /* region->lock; pins that are the owner's */
	atomic_t exported; /* pieces of it that devices have mapped through our dma-bufs */
};

struct fm_region {
	struct kref kref;
	u32 id;
	enum fabricmgr_region_kind kind;
	char name[FABRICMGR_NAME_BYTES];
	u32 lease_region;
	u64 bytes;
	bool is_discardable;

	/* fm_objects */
	struct list_head link; /* fm_regions */
	kuid_t uid;
	kgid_t gid;
	umode_t mode;
	bool is_ready; /* made completely */
	bool is_gone;  /* destroyed; its name is free */
	struct fm_client *manager;
	struct fm_window read_window, write_window, words_window;

	struct rw_semaphore lock;
	bool is_dead;		  /* lock; its memory went */
	bool is_baselined;	  /* lock */
	struct xarray attachments; /* lock; by client id */
	struct fm_chunk *chunks;
	u32 chunk_count;
	u32 order;
	int node;
	u64 *words; /* one for each chunk, shared with user space: never trusted */
	atomic64_t resident_bytes;
	atomic_t mappings;
	atomic_t exports;
	struct mutex exports_lock;
	struct list_head export_list; /* exports_lock */
	struct file *vault;
	struct fm_peer *peer;	   /* until the region is dead */
	struct fm_client *creator; /* fm_objects; of a peer, which ends with it */

	/* Reclaim: fm_objects, but for the place, which is region->lock's. */
	struct fm_event pressure, taken; /* to the manager */
	u64 asked_ns;
	u32 taken_chunks; /* since it was asked */
	u32 reclaim_next;

	kuid_t charged_uid;
	struct list_head leaving; /* fm_leaving; pages that somebody still holds */
	struct list_head leaving_pages;
};

/* One client's hold on one region. Two references: the client's table and the region's. */
struct fm_attachment {
	struct kref kref;
	struct fm_client *client;
	struct fm_region *region;
	bool may_write;	      /* only ever becomes true */
	bool is_closed;	      /* region->lock */
	struct xarray staged; /* region->lock; chunk -> number of pages that it stages there */
	atomic64_t staged_pages;
	atomic_t mappings;
	struct fm_event *died; /* fm_objects; ready for the day this client dies */
	struct fm_event gone;
};

/* ---- clients (client.c) ---- */

struct fm_client {
	u32 id;
	kuid_t uid;
	kgid_t gid;
	struct pid *pid; /* of the process that opened it; it may be gone, or another may hold it */
	u64 opened_ns;
	struct xarray attachments; /* fm_objects to change; by region id */
	struct fabricmgr_lease *leases;
	u32 entries; /* fm_objects; 0: no table */
	struct fm_window leases_window;
	struct fm_events events;
	struct delayed_work ring_work; /* ring.c, where the kernel cannot cancel commands */
};

extern struct mutex fm_objects;
extern struct list_head fm_regions; /* fm_objects */
extern struct xarray fm_clients;    /* fm_objects to change; by id */
extern struct address_space *fm_mapping;

/* main.c */
bool fm_is_admin(void);
long fm_call_run(struct fm_client *client, unsigned int command, void __user *argument);
bool fm_call_may_ring(unsigned int command);
long fm_call_copy_in(void *argument, size_t bytes, const void __user *from);
extern unsigned long long fm_limit_bytes;
extern unsigned int fm_limit_regions, fm_limit_clients;
extern unsigned long long fm_user_bytes;
extern unsigned int fm_user_regions, fm_user_clients;

/* quota.c */
enum fm_quota_kind { FM_QUOTA_BYTES, FM_QUOTA_REGIONS, FM_QUOTA_CLIENTS, FM_QUOTA_KINDS };
int fm_quota_charge(kuid_t uid, enum fm_quota_kind kind, u64 amount);
void fm_quota_uncharge(kuid_t uid, enum fm_quota_kind kind, u64 amount);
u64 fm_quota_used(enum fm_quota_kind kind);
long fm_quota_get(struct fm_client *client, void *argument);
long fm_quota_set(struct fm_client *client, void *argument);
void fm_quota_exit(void);

/* map.c */
int fm_map_init(void);
void fm_map_exit(void);
int fm_window_open(struct fm_window *window, enum fm_window_kind kind, void *object, u64 bytes);
void fm_window_close(struct fm_window *window);
u64 fm_window_offset(const struct fm_window *window);
u64 fm_window_bytes(const struct fm_window *window);
void *fm_table_alloc(u64 bytes);
int fm_map(struct file *file, struct vm_area_struct *vma);
void fm_map_zap(struct fm_region *region, const struct fm_window *window, u64 first, u64 count);

/* chunk.c */
int fm_chunks_alloc(struct fm_region *region, u32 order, bool is_exact, bool is_charged);
int fm_chunk_fill(struct fm_region *region, struct fm_chunk *chunk, u32 order, bool is_charged);
void fm_chunks_free(struct fm_region *region);
bool fm_chunk_is_pinned(struct fm_region *region, struct fm_chunk *chunk);
u32 fm_chunk_pins(const struct fm_chunk *chunk);
bool fm_chunk_is_held(const struct page *page);
void fm_page_free(struct page *page, u32 order);
u64 fm_chunks_leaving_bytes(void);
void fm_chunks_exit(void);

/* region.c */
struct fm_region *fm_region_find(u32 id);
void fm_region_put(struct fm_region *region);
bool fm_region_allows(const struct fm_region *region, int wanted);
void fm_region_end(struct fm_region *region);
void fm_region_end_created(struct fm_client *client, struct list_head *ending);
void fm_region_end_all(struct list_head *ending);
void fm_region_detach(struct fm_attachment *attachment);
struct fm_attachment *fm_region_attachment(struct fm_client *client, u32 id);
void fm_attachment_put(struct fm_attachment *attachment);
long fm_region_info(struct fm_client *client, void *argument);
long fm_region_create(struct fm_client *client, void *argument);
long fm_region_open(struct fm_client *client, void *argument);
long fm_region_close(struct fm_client *client, void *argument);
long fm_region_destroy(struct fm_client *client, void *argument);
long fm_region_baseline(struct fm_client *client, void *argument);
long fm_region_own(struct fm_client *client, void *argument);

/* vault.c */
long fm_vault_create(struct fm_client *client, void *argument);
long fm_region_fd(struct fm_client *client, void *argument);

/* stage.c */
long fm_batch_run(struct fm_client *client, unsigned int command, void *argument);
u64 fm_stage_clear(struct fm_attachment *attachment);

/* client.c */
int fm_client_open(struct inode *inode, struct file *file);
int fm_client_flush(struct file *file, fl_owner_t id);
int fm_client_release(struct inode *inode, struct file *file);
u32 fm_client_leases(const struct fm_client *client);
bool fm_client_is_visible(struct fm_client *viewer, struct fm_client *client);
long fm_client_setup(struct fm_client *client, void *argument);
long fm_client_info(struct fm_client *client, void *argument);

/* event.c */
void fm_events_init(struct fm_events *events);
void fm_events_close(struct fm_events *events);
struct fm_event *fm_event_alloc(struct fm_client *about, struct fm_region *region);
void fm_event_free(struct fm_event *event);
void fm_event_post(struct fm_client *to, struct fm_event *event);
void fm_event_cancel(struct fm_client *at, struct fm_event *event);
bool fm_events_pending(struct fm_events *events);
long fm_events_take(struct fm_client *client, struct fabricmgr_event __user *records, u32 capacity);
ssize_t fm_events_read(struct file *file, char __user *buffer, size_t bytes, loff_t *position);
__poll_t fm_events_poll(struct file *file, struct poll_table_struct *table);
long fm_events_wait(struct fm_client *client, void *argument);

#endif
