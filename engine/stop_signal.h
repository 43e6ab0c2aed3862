/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SIGINT and SIGTERM as an eventfd that counts them: readable until it is read. For the main
 * functions of the commands. Invariant: the handler does nothing but one async-signal-safe write.
 */
#ifndef FM_ENGINE_STOP_SIGNAL_H
#define FM_ENGINE_STOP_SIGNAL_H

/* Installs the handlers (and ignores SIGPIPE); returns the descriptor, or a negative fm_err. */
int fm_stop_signal_fd(void);

#endif
