/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The subcommand `fabric-engine inspect`. Returns the process's exit status: 0, 1 failed, 2 usage.
 */
#ifndef FM_ENGINE_INSPECT_H
#define FM_ENGINE_INSPECT_H

int fm_inspect_main(int argc, char **argv);

#endif
