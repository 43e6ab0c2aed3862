/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `fabric-engine router`: command line and signals around the front end (http/front_end.h). Called
 * by main only; its exit status is the program's.
 */
#ifndef FM_ENGINE_ROUTER_H
#define FM_ENGINE_ROUTER_H

int fm_router_main(int argc, char **argv);

#endif
