/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The codes of all messages in the logs: calls of fm_log() put one before their text. Any layer and
 * program of this tree may include it; it is not installed. Invariant: a code never changes its
 * meaning, and each has its row in Documentation/runbook.md (tests/house compares).
 */
#ifndef FABRICMGR_MESSAGES_H
#define FABRICMGR_MESSAGES_H

/* fabricmgrd: start and end */
#define FM1001 "FM1001 " /* the socket's folder cannot be created */
#define FM1002 "FM1002 " /* the version */
#define FM1003 "FM1003 " /* the configuration file that was read */
#define FM1004 "FM1004 " /* the memory that the pool stands on */
#define FM1005 "FM1005 " /* the size of the pool */
#define FM1006 "FM1006 " /* the socket */
#define FM1007 "FM1007 " /* ready */
#define FM1008 "FM1008 " /* the ready descriptor cannot be written */
#define FM1009 "FM1009 " /* it cannot start */
#define FM1010 "FM1010 " /* it stopped serving by a fault */
#define FM1011 "FM1011 " /* --check found that it would not start */
#define FM1012 "FM1012 " /* where the metrics are */
#define FM1013 "FM1013 " /* the service manager cannot be told */
#define FM1014 "FM1014 " /* the pool did not answer the watchdog */
#define FM1015 "FM1015 " /* FABRICMGR_LOG names no level */

/* the pool: memory and clients */
#define FM1101 "FM1101 " /* memory cannot be given back */
#define FM1102 "FM1102 " /* the lock file's path cannot be looked at */
#define FM1103 "FM1103 " /* a connection was not taken */
#define FM1104 "FM1104 " /* a client broke the ring's rules */
#define FM1105 "FM1105 " /* a client's event cannot be read or written */
#define FM1106 "FM1106 " /* a client broke the protocol, or was refused */

/* fabricmgrd: the Redis front end; reload */
#define FM1201 "FM1201 " /* it stopped */
#define FM1202 "FM1202 " /* an address that it listens on */
#define FM1203 "FM1203 " /* connections wait */
#define FM1301 "FM1301 " /* a changed setting needs a restart */
#define FM1302 "FM1302 " /* a reload was refused */
#define FM1303 "FM1303 " /* a reload is done */

/* the pool's NVMe tier */
#define FM1401 "FM1401 " /* a part of it could not be read at start */
#define FM1402 "FM1402 " /* its memory is not registered with the kernel */
#define FM1403 "FM1403 " /* a segment could not be written */
#define FM1404 "FM1404 " /* a flush failed */
#define FM1405 "FM1405 " /* it takes no more blocks */
#define FM1406 "FM1406 " /* a block could not be read */
#define FM1407 "FM1407 " /* a block came back with other bytes */
#define FM1408 "FM1408 " /* its file is being filled */
#define FM1409 "FM1409 " /* space could not be given back */
#define FM1410 "FM1410 " /* its event could not be read */

/* the pool outlives its daemon */
#define FM1501 "FM1501 " /* a pool was taken over */
#define FM1502 "FM1502 " /* a pool that was there was not taken over */
#define FM1503 "FM1503 " /* it cannot be handed over */
#define FM1504 "FM1504 " /* the service manager was not told */
#define FM1505 "FM1505 " /* the index is rebuilt */
#define FM1506 "FM1506 " /* blocks were dropped */
#define FM1507 "FM1507 " /* the kernel module keeps the pool of a daemon that ends */
#define FM1508 "FM1508 " /* the kernel module is there and does not keep the pool */

/* fabricmgr-holder */
#define FM1601 "FM1601 " /* the daemon is started */
#define FM1602 "FM1602 " /* it is not, or not again */
#define FM1603 "FM1603 " /* it ended, and is started again */
#define FM1604 "FM1604 " /* it cannot be executed */
#define FM1605 "FM1605 " /* an upgrade */
#define FM1606 "FM1606 " /* it is killed */
#define FM1607 "FM1607 " /* a descriptor is not kept */
#define FM1608 "FM1608 " /* the ready descriptor cannot be written */
#define FM1609 "FM1609 " /* what the daemon says of itself */
#define FM1610 "FM1610 " /* an upgrade is refused */

/* fabric-engine: programs */
#define FM2001 "FM2001 " /* the embedded pool stopped */
#define FM2002 "FM2002 " /* serve failed */
#define FM2003 "FM2003 " /* the router failed */
#define FM2004 "FM2004 " /* a worker failed */

/* fabric-engine: the front end and its workers */
#define FM2101 "FM2101 " /* the front end cannot be woken */
#define FM2102 "FM2102 " /* the router attached to the pool */
#define FM2103 "FM2103 " /* the router has no pool */
#define FM2104 "FM2104 " /* a request was dropped for want of memory */
#define FM2105 "FM2105 " /* a worker gave a request back */
#define FM2106 "FM2106 " /* a worker refused a request */
#define FM2107 "FM2107 " /* a worker is up */
#define FM2108 "FM2108 " /* stopping */
#define FM2109 "FM2109 " /* the model has no chat template that is understood */
#define FM2110 "FM2110 " /* a worker is not reached, or lost */
#define FM2111 "FM2111 " /* no memory to read what a worker sent */
#define FM2112 "FM2112 " /* a request was taken */
#define FM2113 "FM2113 " /* a request goes to a worker */
#define FM2114 "FM2114 " /* a request is over */

/* fabric-engine: the worker's side */
#define FM2201 "FM2201 " /* the pool's daemon is gone */
#define FM2202 "FM2202 " /* the pool is there again */
#define FM2203 "FM2203 " /* a front end was not taken */
#define FM2204 "FM2204 " /* no memory to read what a front end sent */
#define FM2205 "FM2205 " /* a front end sent too long a line */
#define FM2209 "FM2209 " /* the pool is smaller than one context */
#define FM2210 "FM2210 " /* a request was taken */
#define FM2211 "FM2211 " /* a block of a request */
#define FM2212 "FM2212 " /* a request is over */

#endif
