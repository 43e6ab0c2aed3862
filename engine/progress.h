/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One line of progress for a person who waits, on standard error. Silent when that is no terminal.
 */
#ifndef FM_ENGINE_PROGRESS_H
#define FM_ENGINE_PROGRESS_H

/* Replaces the line. */
void fm_progress(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Takes the line away, before anything else is printed. */
void fm_progress_end(void);

#endif
