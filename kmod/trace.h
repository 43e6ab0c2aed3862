/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Tracepoints of the module. They hold numbers alone: who they mean is in debugfs.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM fabricmgr

#if !defined(FM_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define FM_TRACE_H

#include <linux/tracepoint.h>

TRACE_EVENT(fabricmgr_region,
	TP_PROTO(u32 region, u32 what, u64 bytes, u32 order),
	TP_ARGS(region, what, bytes, order),
	TP_STRUCT__entry(
		__field(u32, region)
		__field(u32, what)
		__field(u64, bytes)
		__field(u32, order)
	),
	TP_fast_assign(
		__entry->region = region;
		__entry->what = what;
		__entry->bytes = bytes;
		__entry->order = order;
	),
	TP_printk("region=%u %s bytes=%llu order=%u", __entry->region,
		  __print_symbolic(__entry->what, { 1, "created" }, { 2, "destroyed" },
				   { 3, "freed" }),
		  __entry->bytes, __entry->order)
);

TRACE_EVENT(fabricmgr_client,
	TP_PROTO(u32 client, u32 what, u32 leases, u64 staged),
	TP_ARGS(client, what, leases, staged),
	TP_STRUCT__entry(
		__field(u32, client)
		__field(u32, what)
		__field(u32, leases)
		__field(u64, staged)
	),
	TP_fast_assign(
		__entry->client = client;
		__entry->what = what;
		__entry->leases = leases;
		__entry->staged = staged;
	),
	TP_printk("client=%u %s leases=%u staged=%llu", __entry->client,
		  __print_symbolic(__entry->what, { 1, "opened" }, { 2, "released" }),
		  __entry->leases, __entry->staged)
);

TRACE_EVENT(fabricmgr_batch,
	TP_PROTO(u32 call, u32 region, u32 count, u32 succeeded),
	TP_ARGS(call, region, count, succeeded),
	TP_STRUCT__entry(
		__field(u32, call)
		__field(u32, region)
		__field(u32, count)
		__field(u32, succeeded)
	),
	TP_fast_assign(
		__entry->call = call;
		__entry->region = region;
		__entry->count = count;
		__entry->succeeded = succeeded;
	),
	TP_printk("%s region=%u count=%u succeeded=%u",
		  __print_symbolic(__entry->call, { 0x30, "stage" }, { 0x31, "unstage" },
				   { 0x32, "seal" }, { 0x33, "unseal" }, { 0x34, "pins" },
				   { 0x35, "refill" }),
		  __entry->region, __entry->count, __entry->succeeded)
);

TRACE_EVENT(fabricmgr_reclaim,
	TP_PROTO(u32 region, u64 asked, u32 taken),
	TP_ARGS(region, asked, taken),
	TP_STRUCT__entry(
		__field(u32, region)
		__field(u64, asked)
		__field(u32, taken)
	),
	TP_fast_assign(
		__entry->region = region;
		__entry->asked = asked;
		__entry->taken = taken;
	),
	TP_printk("region=%u asked=%llu taken=%u", __entry->region, __entry->asked,
		  __entry->taken)
);

#endif

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>
