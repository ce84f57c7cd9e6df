/* SPDX-License-Identifier: Apache-2.0 */
/* See output.h. */
#include "tools/output.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int output_failed; /* exit status */

static void at_end(void)
{
    const int before = ferror(stdout);

    errno = 0;
    if (fflush(stdout) == 0 && !before)
        return;
    fprintf(stderr, "%s: the output could not be written%s%s\n", program_invocation_short_name,
            errno ? ": " : "", errno ? strerror(errno) : "");
    _exit(output_failed);
}

void output_check(int status)
{
    output_failed = status;
    atexit(at_end);
}
