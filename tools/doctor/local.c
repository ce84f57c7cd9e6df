/* SPDX-License-Identifier: Apache-2.0 */
/* All checks of one node, in an order that lets later checks use earlier findings. */
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "abi/context.h"
#include "base/log.h"
#include "doctor.h"
#include "system.h"

/* Warnings of the plugin's code in this process. In a job they go to its log, here they are findings. */
static struct {
    pthread_mutex_t lock;
    char line[32][400];
    unsigned first, n;
} kept = {.lock = PTHREAD_MUTEX_INITIALIZER};

__attribute__((format(printf, 5, 6))) static void keep(ncclDebugLogLevel level, unsigned long flags,
                                                       const char *file, int line, const char *fmt, ...)
{
    static const char prefix[] = "NET/nibble : ";
    const unsigned most = sizeof(kept.line) / sizeof(kept.line[0]);
    char text[sizeof(kept.line[0]) + sizeof(prefix)];
    va_list ap;

    (void)flags, (void)file, (void)line;
    if (level != NCCL_LOG_WARN)
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    const size_t skip = strncmp(text, prefix, sizeof(prefix) - 1) == 0 ? sizeof(prefix) - 1 : 0;
    pthread_mutex_lock(&kept.lock);
    if (kept.n < most)
        snprintf(kept.line[(kept.first + kept.n++) % most], sizeof(kept.line[0]), "%.399s", text + skip);
    pthread_mutex_unlock(&kept.lock);
}

void log_begin(void)
{
    setenv("NCCL_DEBUG", "WARN", 1); /* so that urgent warnings stay off stderr */
    nb_log_set(keep);
}

bool log_next(char *line, size_t cap)
{
    pthread_mutex_lock(&kept.lock);
    const bool any = kept.n > 0;
    if (any) {
        snprintf(line, cap, "%s", kept.line[kept.first]);
        kept.first = (kept.first + 1) % (sizeof(kept.line) / sizeof(kept.line[0]));
        kept.n--;
    }
    pthread_mutex_unlock(&kept.lock);
    return any;
}

void doctor_local(struct doctor *d)
{
    system_root(d->options.system);
    check_files(d);
    log_begin();
    check_settings(d);
    if (!d->params)
        return;
    check_environment(d);
    check_library(d);
    check_devices(d);
    check_rdma(d);
    check_gpus(d);
    check_limits(d);
    check_compressed(d);
    check_distance(d);
    check_gain(d);
}

void doctor_end(struct doctor *d)
{
    if (d->ctx) {
        nb_context_stop(d->ctx);
        nb_context_fini(d->ctx);
    }
    free(d->ctx);
    free(d->list);
    nb_params_free(d->params);
}
