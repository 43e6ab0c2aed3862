// SPDX-License-Identifier: GPL-2.0
/*
 * What a client is told: one queue for each open file, read by read(), by a call, or by a ring
 * command that waits (ring.c). Records stand ready before they are needed, so that telling never
 * fails. Called by whoever has news, under fm_objects.
 * Invariant: a record leaves the queue after user space has it, not before; a queue holds one
 * record for each reason and object. While it is long, no clients come whose deaths it would hold.
 */
#include <linux/poll.h>
#include <linux/pid_namespace.h>
#include <linux/slab.h>
#include <linux/user_namespace.h>

#include "internal.h"
#include "ring.h"

#define FM_EVENTS_AT_ONCE 8 /* records copied from the queue at a time, on the stack */

void fm_events_init(struct fm_events *events)
{
	spin_lock_init(&events->lock);
	INIT_LIST_HEAD(&events->queue);
	INIT_LIST_HEAD(&events->waiting);
	mutex_init(&events->reader);
	init_waitqueue_head(&events->wait);
}

/* A record for the day @about dies, in @region. */
struct fm_event *fm_event_alloc(struct fm_client *about, struct fm_region *region)
{
	struct fm_event *event = kzalloc(sizeof(*event), GFP_KERNEL_ACCOUNT);

	if (!event)
		return NULL;
	event->is_owned = true;
	event->pid = get_pid(about->pid);
	event->uid = about->uid;
	event->record.kind = FABRICMGR_EVENT_CLIENT_DIED;
	event->record.region = region->id;
	event->record.client = about->id;
	return event;
}

void fm_event_free(struct fm_event *event)
{
	if (!event)
		return;
	put_pid(event->pid);
	kfree(event);
}

/*
 * fm_objects, or the caller otherwise knows that @to lives. An event that is queued already moves
 * to the end, so that a reader that has copied its older form does not take it away.
 */
void fm_event_post(struct fm_client *to, struct fm_event *event)
{
	struct fm_events *events = &to->events;

	spin_lock(&events->lock);
	if (events->is_closed) {
		spin_unlock(&events->lock);
		if (event->is_owned)
			fm_event_free(event);
		return;
	}
	if (event->is_queued)
		list_del(&event->link);
	else
		events->length++;
	event->is_queued = true;
	event->sequence = ++events->sequence;
	list_add_tail(&event->link, &events->queue);
	spin_unlock(&events->lock);
	wake_up_interruptible(&events->wait);
	fm_ring_wake(events);
}

/* Takes back an event that belongs to an object that ends. */
void fm_event_cancel(struct fm_client *at, struct fm_event *event)
{
	spin_lock(&at->events.lock);
	if (event->is_queued) {
		list_del(&event->link);
		at->events.length--;
	}
	event->is_queued = false;
	spin_unlock(&at->events.lock);
}

bool fm_events_pending(struct fm_events *events)
{
	return !list_empty_careful(&events->queue);
}

static u32 fm_events_peek(struct fm_events *events, struct fabricmgr_event *records,
			  struct pid **pids, kuid_t *uids, u32 capacity, u64 *last)
{
	struct fm_event *event;
	u32 count = 0;

	spin_lock(&events->lock);
	list_for_each_entry(event, &events->queue, link) {
		if (count == capacity)
			break;
		records[count] = event->record;
		pids[count] = get_pid(event->pid);
		uids[count] = event->uid;
		*last = event->sequence;
		count++;
	}
	spin_unlock(&events->lock);
	return count;
}

static void fm_events_drop(struct fm_events *events, u64 last)
{
	struct fm_event *event, *next;
	LIST_HEAD(owned);

	spin_lock(&events->lock);
	list_for_each_entry_safe(event, next, &events->queue, link) {
		if (event->sequence > last)
			break;
		list_del(&event->link);
		event->is_queued = false;
		events->length--;
		if (event->is_owned)
			list_add_tail(&event->link, &owned);
	}
	spin_unlock(&events->lock);
	list_for_each_entry_safe(event, next, &owned, link)
		fm_event_free(event);
}

/* Up to @capacity records to user space; what could not be copied stays. 0: there are none. */
long fm_events_take(struct fm_client *client, struct fabricmgr_event __user *to, u32 capacity)
{
	struct fabricmgr_event records[FM_EVENTS_AT_ONCE];
	struct pid *pids[FM_EVENTS_AT_ONCE];
	kuid_t uids[FM_EVENTS_AT_ONCE];
	u32 total = 0, count, i;
	long error = 0;
	u64 last = 0;

	if (mutex_lock_killable(&client->events.reader))
		return -EINTR;
	while (total < capacity && !error) {
		count = fm_events_peek(&client->events, records, pids, uids,
				       min_t(u32, capacity - total, FM_EVENTS_AT_ONCE), &last);
		if (!count)
			break;
		for (i = 0; i < count; i++) {
			if (records[i].kind != FABRICMGR_EVENT_CLIENT_DIED)
				continue;
			records[i].pid = pid_nr_ns(pids[i], task_active_pid_ns(current));
			records[i].uid = from_kuid_munged(current_user_ns(), uids[i]);
			put_pid(pids[i]);
		}
		if (copy_to_user(to + total, records, count * sizeof(*to)))
			error = -EFAULT;
		else
			fm_events_drop(&client->events, last);
		total += error ? 0 : count;
	}
	mutex_unlock(&client->events.reader);
	return total ? total : error;
}

static long fm_events_block(struct fm_client *client, struct fabricmgr_event __user *to,
			    u32 capacity, bool is_blocking)
{
	long count;

	do {
		count = fm_events_take(client, to, capacity);
		if (count || !is_blocking)
			return count ?: -EAGAIN;
	} while (!wait_event_interruptible(client->events.wait,
					   fm_events_pending(&client->events)));
	return -ERESTARTSYS;
}

ssize_t fm_events_read(struct file *file, char __user *buffer, size_t bytes, loff_t *position)
{
	size_t capacity = bytes / sizeof(struct fabricmgr_event);
	long count;

	if (!capacity)
		return -EINVAL;
	capacity = min_t(size_t, capacity, FABRICMGR_BATCH_MAX);
	count = fm_events_block(file->private_data, (struct fabricmgr_event __user *)buffer,
				capacity, !(file->f_flags & O_NONBLOCK));
	return count < 0 ? count : count * sizeof(struct fabricmgr_event);
}

__poll_t fm_events_poll(struct file *file, struct poll_table_struct *table)
{
	struct fm_client *client = file->private_data;

	poll_wait(file, &client->events.wait, table);
	return fm_events_pending(&client->events) ? EPOLLIN | EPOLLRDNORM : 0;
}

/* The call EVENTS as an ioctl: blocks. */
long fm_events_wait(struct fm_client *client, void *argument)
{
	struct fabricmgr_events *arg = argument;
	long count;

	if (!arg->capacity || arg->capacity > FABRICMGR_BATCH_MAX)
		return -EINVAL;
	count = fm_events_block(client, u64_to_user_ptr(arg->records), arg->capacity, true);
	if (count < 0)
		return count;
	arg->count = count;
	return 0;
}

/* Nothing comes any more. */
void fm_events_close(struct fm_events *events)
{
	struct fm_event *event, *next;

	spin_lock(&events->lock);
	events->is_closed = true;
	spin_unlock(&events->lock);
	list_for_each_entry_safe(event, next, &events->queue, link) {
		list_del(&event->link);
		event->is_queued = false;
		if (event->is_owned)
			fm_event_free(event);
	}
}
