/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The subcommand `fabric-engine run`. Returns the process's exit status: 0, 1 failed, 2 usage.
 */
#ifndef FM_ENGINE_RUN_H
#define FM_ENGINE_RUN_H

int fm_run_main(int argc, char **argv);

#endif
