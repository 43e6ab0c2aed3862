/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `fabric-engine inspect`: what is in a model file. Called by main() only. Reads the file's header
 * and metadata, never the weights.
 */
#ifndef FM_ENGINE_INSPECT_H
#define FM_ENGINE_INSPECT_H

/* @argv[0] is the command's name. Returns the exit status: 0, 1 (the file), 2 (the command line).
 */
int fm_inspect_main(int argc, char **argv);

#endif
