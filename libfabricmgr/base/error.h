/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What callers inside the library want of the errors besides fabricmgr.h. Any layer may call.
 * Invariant: an errno has one meaning everywhere.
 */
#ifndef FM_BASE_ERROR_H
#define FM_BASE_ERROR_H

/* The error of this thread's last fm_fail(): for who was told by a NULL that something failed. */
int fm_error_last(void);
/* The error that @number stands for when a system call fails for want of something: memory is
 * FM_ERR_NO_MEMORY, the rest FM_ERR_IO. */
int fm_error_of(int number);

#endif
