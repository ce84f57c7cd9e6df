/* SPDX-License-Identifier: Apache-2.0 */
/* Which build this is. */
#ifndef NIBBLE_BASE_VERSION_H
#define NIBBLE_BASE_VERSION_H

/* "0.1.0": the release. The same text on all nodes means that they run the same release. Static storage. */
const char *nb_version(void);

/* "0.1.0 (c87a6b0d9f21)": with the commit that was built, "-dirty" where files had changed, "unknown" without
 * a repository. */
const char *nb_version_with_commit(void);

#endif
