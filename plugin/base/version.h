/* SPDX-License-Identifier: Apache-2.0 */
/* The build's release and commit. */
#ifndef NIBBLE_BASE_VERSION_H
#define NIBBLE_BASE_VERSION_H

/* Return the release, such as "0.2.0". The same text on all nodes means that they run the same release.
 * Static storage. */
const char *nb_version(void);

/* Return "0.2.0 (c87a6b0d9f21)", the release with the commit that was built. "-dirty" marks changed files,
 * and "unknown" stands for a build outside a repository. */
const char *nb_version_with_commit(void);

#endif
