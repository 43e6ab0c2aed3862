/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The subcommand `fabric-engine bench`. Returns the process's exit status: 0, 1 failed, 2 usage.
 */
#ifndef FM_ENGINE_BENCH_H
#define FM_ENGINE_BENCH_H

int fm_bench_main(int argc, char **argv);

#endif
