/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The subcommand `fabric-engine serve`. Returns the process's exit status: 0, 1 failed, 2 usage.
 */
#ifndef FM_ENGINE_SERVE_H
#define FM_ENGINE_SERVE_H

int fm_serve_main(int argc, char **argv);

#endif
