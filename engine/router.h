/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The subcommand `fabric-engine router`. Returns the process's exit status: 0, 1 failed, 2 usage.
 */
#ifndef FM_ENGINE_ROUTER_H
#define FM_ENGINE_ROUTER_H

int fm_router_main(int argc, char **argv);

#endif
