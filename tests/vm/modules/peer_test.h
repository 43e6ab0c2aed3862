/* SPDX-License-Identifier: GPL-2.0 */
/* The calls of peer_test.c, for it and for tests/vm/tests/dmabuf.c; each takes a number. */
#ifndef FM_PEER_TEST_H
#define FM_PEER_TEST_H

#include <linux/ioctl.h>

#define PEER_TEST_EXPORT	 _IO(0xFB, 0) /* returns a descriptor of 16 pages */
#define PEER_TEST_EXPORT_STATIC	 _IO(0xFB, 1)
#define PEER_TEST_MOVE		 _IO(0xFB, 2) /* of a descriptor */
#define PEER_TEST_IMPORT	 _IO(0xFB, 3) /* a descriptor, both ways */
#define PEER_TEST_IMPORT_TO_READ _IO(0xFB, 4)
#define PEER_TEST_FILL		 _IO(0xFB, 5) /* with a byte; returns the pages */
#define PEER_TEST_NOTIFIED	 _IO(0xFB, 6)
#define PEER_TEST_LET_GO	 _IO(0xFB, 7)

#endif
