/* SPDX-License-Identifier: Apache-2.0 */
/* The release, and the commit it was built from. */
#include "base/version.h"

#include "config.h"
#include "nb-commit.h"

const char *nb_version(void)
{
    return PACKAGE_VERSION;
}

const char *nb_version_with_commit(void)
{
    return PACKAGE_VERSION " (" NB_COMMIT ")";
}
