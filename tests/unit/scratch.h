/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Folders and files of one test, under $TMPDIR, or /tmp where that is too long a name. tests/run.py
 * gives each test program a $TMPDIR that goes with it, so that nothing stays of a test that is
 * killed. For tests. Failures end the test.
 */
#ifndef FM_TESTS_SCRATCH_H
#define FM_TESTS_SCRATCH_H

enum { SCRATCH_MAX = 80 }; /* a socket in such a folder still has a name that fits */

/* A new folder, which other users may look into. */
void scratch_folder(char folder[SCRATCH_MAX]);
/* With all that is in it. */
void scratch_remove(const char *folder);
/* A new file, and a descriptor of it. */
int scratch_file(char path[SCRATCH_MAX]);

#endif
