/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SIGINT and SIGTERM as a file descriptor that becomes readable once and stays so.
 */
#ifndef FM_ENGINE_STOP_SIGNAL_H
#define FM_ENGINE_STOP_SIGNAL_H

/* Installs the handlers (and ignores SIGPIPE); returns the descriptor, or a negative fm_err. */
int fm_stop_signal_fd(void);

#endif
