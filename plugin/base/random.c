/* SPDX-License-Identifier: Apache-2.0 */
/* getrandom, with its partial results. */
#include "base/random.h"

#include <errno.h>
#include <sys/random.h>
#include <sys/types.h>

int nb_random(void *buf, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = getrandom((char *)buf + done, bytes - done, 0);
        if (n < 0 && errno != EINTR)
            return -errno;
        done += n > 0 ? (size_t)n : 0;
    }
    return 0;
}
