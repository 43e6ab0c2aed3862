// SPDX-License-Identifier: GPL-2.0
/*
 * What each uid, and all together, may hold: bytes of regions, regions, open files. Everything
 * that is created charges here first and uncharges when it is freed. Takes no lock but its own.
 * Invariant: the sum over the uids is the total.
 */
#include <linux/list.h>
#include <linux/slab.h>
#include <linux/user_namespace.h>

#include "internal.h"

struct fm_quota {
	struct list_head link;
	kuid_t uid;
	u64 limits[FM_QUOTA_KINDS]; /* FABRICMGR_QUOTA_DEFAULT: the module's parameter */
	u64 used[FM_QUOTA_KINDS];
};

static DEFINE_SPINLOCK(fm_quotas_lock);
static LIST_HEAD(fm_quotas);
static u64 fm_quota_total[FM_QUOTA_KINDS];

static u64 fm_quota_limit(const struct fm_quota *quota, enum fm_quota_kind kind)
{
	const u64 defaults[FM_QUOTA_KINDS] = { fm_user_bytes, fm_user_regions, fm_user_clients };

	if (quota && quota->limits[kind] != FABRICMGR_QUOTA_DEFAULT)
		return quota->limits[kind];
	return defaults[kind];
}

static struct fm_quota *fm_quota_find(kuid_t uid)
{
	struct fm_quota *quota;

	list_for_each_entry(quota, &fm_quotas, link)
		if (uid_eq(quota->uid, uid))
			return quota;
	return NULL;
}

static struct fm_quota *fm_quota_alloc(kuid_t uid)
{
	struct fm_quota *quota = kzalloc(sizeof(*quota), GFP_KERNEL_ACCOUNT);
	int kind;

	if (!quota)
		return NULL;
	quota->uid = uid;
	for (kind = 0; kind < FM_QUOTA_KINDS; kind++)
		quota->limits[kind] = FABRICMGR_QUOTA_DEFAULT;
	return quota;
}

/* The lock. The entry of *@fresh's uid: that one, unless there is another already. */
static struct fm_quota *fm_quota_add(struct fm_quota **fresh)
{
	struct fm_quota *quota = fm_quota_find((*fresh)->uid);

	if (quota)
		return quota;
	quota = *fresh;
	*fresh = NULL;
	list_add(&quota->link, &fm_quotas);
	return quota;
}

/* The lock. Takes out an entry that says nothing; the caller frees what is returned. */
static struct fm_quota *fm_quota_forget(struct fm_quota *quota)
{
	int kind;

	for (kind = 0; kind < FM_QUOTA_KINDS; kind++)
		if (quota->used[kind] || quota->limits[kind] != FABRICMGR_QUOTA_DEFAULT)
			return NULL;
	list_del(&quota->link);
	return quota;
}

static bool fm_quota_fits(u64 used, u64 amount, u64 limit)
{
	return used <= limit && amount <= limit - used;
}

/* EDQUOT: @uid has no more; ENOSPC: the module has no more. */
int fm_quota_charge(kuid_t uid, enum fm_quota_kind kind, u64 amount)
{
	const u64 totals[FM_QUOTA_KINDS] = { fm_limit_bytes, fm_limit_regions, fm_limit_clients };
	struct fm_quota *fresh = fm_quota_alloc(uid), *quota, *unused;
	int error = 0;

	if (!fresh)
		return -ENOMEM;
	spin_lock(&fm_quotas_lock);
	quota = fm_quota_add(&fresh);
	if (!fm_quota_fits(quota->used[kind], amount, fm_quota_limit(quota, kind))) {
		error = -EDQUOT;
	} else if (!fm_quota_fits(fm_quota_total[kind], amount, totals[kind])) {
		error = -ENOSPC;
	} else {
		quota->used[kind] += amount;
		fm_quota_total[kind] += amount;
	}
	unused = fm_quota_forget(quota);
	spin_unlock(&fm_quotas_lock);
	kfree(unused);
	kfree(fresh);
	return error;
}

void fm_quota_uncharge(kuid_t uid, enum fm_quota_kind kind, u64 amount)
{
	struct fm_quota *quota, *unused = NULL;

	spin_lock(&fm_quotas_lock);
	quota = fm_quota_find(uid);
	if (!WARN_ON_ONCE(!quota || quota->used[kind] < amount)) {
		quota->used[kind] -= amount;
		fm_quota_total[kind] -= amount;
		unused = fm_quota_forget(quota);
	}
	spin_unlock(&fm_quotas_lock);
	kfree(unused);
}

u64 fm_quota_used(enum fm_quota_kind kind)
{
	u64 used;

	spin_lock(&fm_quotas_lock);
	used = fm_quota_total[kind];
	spin_unlock(&fm_quotas_lock);
	return used;
}

static int fm_quota_uid(const struct fabricmgr_quota *arg, kuid_t *uid)
{
	*uid = current_fsuid();
	if (arg->uid != FABRICMGR_ID_SAME)
		*uid = make_kuid(current_user_ns(), arg->uid);
	return uid_valid(*uid) && !arg->reserved ? 0 : -EINVAL;
}

long fm_quota_get(struct fm_client *client, void *argument)
{
	struct fabricmgr_quota *arg = argument;
	const struct fm_quota *quota;
	kuid_t uid;
	int error = fm_quota_uid(arg, &uid);

	if (error)
		return error;
	if (!uid_eq(uid, current_fsuid()) && !fm_is_admin())
		return -EPERM;
	spin_lock(&fm_quotas_lock);
	quota = fm_quota_find(uid);
	arg->limit_bytes = fm_quota_limit(quota, FM_QUOTA_BYTES);
	arg->limit_regions = fm_quota_limit(quota, FM_QUOTA_REGIONS);
	arg->limit_clients = fm_quota_limit(quota, FM_QUOTA_CLIENTS);
	arg->bytes = quota ? quota->used[FM_QUOTA_BYTES] : 0;
	arg->regions = quota ? quota->used[FM_QUOTA_REGIONS] : 0;
	arg->clients = quota ? quota->used[FM_QUOTA_CLIENTS] : 0;
	spin_unlock(&fm_quotas_lock);
	return 0;
}

/* A limit below what is used refuses more; it takes nothing away. */
long fm_quota_set(struct fm_client *client, void *argument)
{
	struct fabricmgr_quota *arg = argument;
	struct fm_quota *fresh, *quota, *unused;
	kuid_t uid;
	int error = fm_quota_uid(arg, &uid);

	if (error)
		return error;
	if (!fm_is_admin())
		return -EPERM;
	fresh = fm_quota_alloc(uid);
	if (!fresh)
		return -ENOMEM;
	spin_lock(&fm_quotas_lock);
	quota = fm_quota_add(&fresh);
	quota->limits[FM_QUOTA_BYTES] = arg->limit_bytes;
	quota->limits[FM_QUOTA_REGIONS] = arg->limit_regions;
	quota->limits[FM_QUOTA_CLIENTS] = arg->limit_clients;
	unused = fm_quota_forget(quota);
	spin_unlock(&fm_quotas_lock);
	kfree(unused);
	kfree(fresh);
	return 0;
}

void fm_quota_exit(void)
{
	struct fm_quota *quota, *next;

	list_for_each_entry_safe(quota, next, &fm_quotas, link)
		kfree(quota);
}
