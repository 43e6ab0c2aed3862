/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command `fabric-engine worker`. Called by main.c; everything else of a worker is in
 * engine/worker.
 */
#ifndef FM_ENGINE_WORKER_COMMAND_H
#define FM_ENGINE_WORKER_COMMAND_H

int fm_worker_main(int argc, char **argv);

#endif
