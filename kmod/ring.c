// SPDX-License-Identifier: GPL-2.0
/*
 * Calls as IORING_OP_URING_CMD. What takes long runs on io_uring's own workers; EVENTS, when there
 * is none, stands in the client's queue and is completed in its submitter's context.
 * Invariant: a waiting command keeps its file open, so it has to end when its submitter does: where
 * the kernel cancels commands, by that; elsewhere from .flush, and for exec, which waits for it
 * before it closes any file, by a look at the submitter from time to time.
 */
#include <linux/sched/signal.h>
#include <linux/sched/task.h>

#include "internal.h"
#include "ring.h"

#define FM_RING_LOOK msecs_to_jiffies(100)

/* Lies in the space that io_uring leaves to drivers. On fm_events.waiting, or with the task. */
struct fm_waiting {
	struct list_head link;
	u64 argument;
	struct task_struct *task; /* leader of the submitter's process */
};

static struct fm_waiting *fm_waiting_of(struct io_uring_cmd *command)
{
	BUILD_BUG_ON(sizeof(struct fm_waiting) > sizeof_field(struct io_uring_cmd, pdu));
	return (struct fm_waiting *)command->pdu;
}

static struct io_uring_cmd *fm_waiting_command(struct fm_waiting *waiting)
{
	return container_of((void *)waiting, struct io_uring_cmd, pdu);
}

static struct fm_client *fm_ring_client(struct io_uring_cmd *command)
{
	return command->file->private_data;
}

static void fm_waiting_done(struct io_uring_cmd *command, long result, unsigned int issue_flags)
{
	put_task_struct(fm_waiting_of(command)->task);
	fm_uring_done(command, result, issue_flags);
}

/* The address and the room for records that a waiting command names. */
static long fm_ring_take(struct fm_client *client, u64 argument)
{
	struct fabricmgr_events arg;
	long error = fm_call_copy_in(&arg, sizeof(arg), u64_to_user_ptr(argument));

	if (error)
		return error;
	if (arg.flags || !arg.capacity || arg.capacity > FABRICMGR_BATCH_MAX)
		return -EINVAL;
	return fm_events_take(client, u64_to_user_ptr(arg.records), arg.capacity);
}

static void fm_ring_wait(struct fm_client *client, struct fm_waiting *waiting)
{
	spin_lock(&client->events.lock);
	list_add_tail(&waiting->link, &client->events.waiting);
	spin_unlock(&client->events.lock);
	if (!FM_RING_CANCEL)
		schedule_delayed_work(&client->ring_work, FM_RING_LOOK);
	/* Something may have come since the queue was found empty. */
	if (fm_events_pending(&client->events))
		fm_ring_wake(&client->events);
}

/* In the submitter's context, or in any when that is gone. */
static void fm_ring_run(struct io_uring_cmd *command, unsigned int issue_flags)
{
	struct fm_client *client = fm_ring_client(command);
	struct fm_waiting *waiting = fm_waiting_of(command);
	long result = -ECANCELED;

	if (current->mm && !(current->flags & PF_EXITING))
		result = fm_ring_take(client, waiting->argument);
	if (result)
		fm_waiting_done(command, result, issue_flags);
	else
		fm_ring_wait(client, waiting); /* another reader was faster */
}

FM_URING_TASK(fm_ring_run_in_task, fm_ring_run)

/* Completes one waiting command when there is something to complete it with. */
void fm_ring_wake(struct fm_events *events)
{
	struct fm_waiting *waiting = NULL;

	spin_lock(&events->lock);
	if (!list_empty(&events->queue))
		waiting = list_first_entry_or_null(&events->waiting, struct fm_waiting, link);
	if (waiting)
		list_del_init(&waiting->link);
	spin_unlock(&events->lock);
	if (waiting)
		io_uring_cmd_complete_in_task(fm_waiting_command(waiting), fm_ring_run_in_task);
}

static int fm_ring_events(struct io_uring_cmd *command, u64 argument, unsigned int issue_flags)
{
	struct fm_client *client = fm_ring_client(command);
	struct fm_waiting *waiting = fm_waiting_of(command);
	long result = fm_ring_take(client, argument);

	if (result)
		return result;
	INIT_LIST_HEAD(&waiting->link);
	waiting->argument = argument;
	waiting->task = get_task_struct(current->group_leader);
	fm_uring_mark_cancelable(command, issue_flags);
	fm_ring_wait(client, waiting);
	return -EIOCBQUEUED;
}

/* Completes @waiting if it still waits. */
static bool fm_ring_claim(struct fm_events *events, struct fm_waiting *waiting)
{
	bool is_ours;

	spin_lock(&events->lock);
	is_ours = !list_empty(&waiting->link);
	if (is_ours)
		list_del_init(&waiting->link);
	spin_unlock(&events->lock);
	return is_ours;
}

int fm_ring_command(struct io_uring_cmd *command, unsigned int issue_flags)
{
	struct fm_client *client = fm_ring_client(command);
	struct fabricmgr_ring_command payload;

	if (fm_uring_is_cancel(issue_flags)) {
		if (fm_ring_claim(&client->events, fm_waiting_of(command)))
			fm_waiting_done(command, -ECANCELED, issue_flags);
		return 0;
	}
	memcpy(&payload, fm_uring_payload(command), sizeof(payload));
	if (payload.reserved)
		return -EINVAL;
	if (command->cmd_op == FABRICMGR_IOC_EVENTS)
		return fm_ring_events(command, payload.argument, issue_flags);
	if (!fm_call_may_ring(command->cmd_op))
		return -ENOTTY;
	if (issue_flags & IO_URING_F_NONBLOCK)
		return -EAGAIN;
	return fm_call_run(client, command->cmd_op, u64_to_user_ptr(payload.argument));
}

/* ---- kernels without cancellation ---- */

static bool fm_task_wants_end(struct task_struct *leader)
{
	struct task_struct *thread;
	bool is_ending = leader->flags & PF_EXITING;

	rcu_read_lock();
	for_each_thread(leader, thread)
		is_ending |= thread->in_execve;
	rcu_read_unlock();
	return is_ending;
}

/* Ends the waiting commands of tasks that are about to end. */
static void fm_ring_end(struct fm_client *client)
{
	struct fm_waiting *waiting, *next;
	LIST_HEAD(ending);

	spin_lock(&client->events.lock);
	list_for_each_entry_safe(waiting, next, &client->events.waiting, link)
		if (fm_task_wants_end(waiting->task))
			list_move(&waiting->link, &ending);
	spin_unlock(&client->events.lock);
	list_for_each_entry_safe(waiting, next, &ending, link) {
		list_del_init(&waiting->link);
		fm_waiting_done(fm_waiting_command(waiting), -ECANCELED, IO_URING_F_UNLOCKED);
	}
}

static void fm_ring_look(struct work_struct *work)
{
	struct fm_client *client = container_of(to_delayed_work(work), struct fm_client, ring_work);

	fm_ring_end(client);
	if (!list_empty_careful(&client->events.waiting))
		schedule_delayed_work(&client->ring_work, FM_RING_LOOK);
}

/*
 * The caller closes the file: when it does so because it ends, nothing of it may keep waiting. Not
 * completed here: io_uring would count the reference to the dying task among those that the task
 * has in store, after it gave these back, and the task would never be freed.
 */
void fm_ring_flush(struct fm_client *client)
{
	if (!FM_RING_CANCEL && (current->flags & PF_EXITING))
		mod_delayed_work(system_wq, &client->ring_work, 0);
}

void fm_ring_init(struct fm_client *client)
{
	INIT_DELAYED_WORK(&client->ring_work, fm_ring_look);
}

void fm_ring_exit(struct fm_client *client)
{
	cancel_delayed_work_sync(&client->ring_work);
}

u64 fm_ring_features(void)
{
	return FABRICMGR_FEATURE_RING | (FM_RING_CANCEL ? FABRICMGR_FEATURE_RING_CANCEL : 0);
}
