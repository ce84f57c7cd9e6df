/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the fake driver: the kind of each address range, and the functions that make, map and free
 * memory. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fake_calls.h"
#include "fake_stream.h"

static size_t created; /* bytes of GPU memory, under fake_lock */

void fake_forget_memory(void)
{
    pthread_mutex_lock(&fake_lock);
    created = 0;
    pthread_mutex_unlock(&fake_lock);
}

size_t fake_created(void)
{
    pthread_mutex_lock(&fake_lock);
    size_t bytes = created;
    pthread_mutex_unlock(&fake_lock);
    return bytes;
}

static struct range { /* the driver's record of address ranges */
    uintptr_t at;
    size_t bytes;
    enum fake_memory type;
    char *seen; /* the CPU's address of the range where it differs */
    struct range *next;
} * ranges;

static void know_as(const void *p, size_t bytes, enum fake_memory type, void *seen)
{
    struct range *r = malloc(sizeof(*r));
    if (!r)
        abort();
    pthread_mutex_lock(&fake_lock);
    *r = (struct range){(uintptr_t)p, bytes, type, seen, ranges};
    ranges = r;
    pthread_mutex_unlock(&fake_lock);
    fake_count(1);
}

static void know(const void *p, size_t bytes, enum fake_memory type)
{
    know_as(p, bytes, type, NULL);
}

void *fake_seen_at(const void *address)
{
    void *at = (void *)(uintptr_t)address;

    pthread_mutex_lock(&fake_lock);
    for (struct range *r = ranges; r; r = r->next)
        if (r->seen && (uintptr_t)address - r->at < r->bytes)
            at = r->seen + ((uintptr_t)address - r->at);
    pthread_mutex_unlock(&fake_lock);
    return at;
}

static size_t forget(const void *p)
{
    size_t bytes = 0;
    struct range *r;

    pthread_mutex_lock(&fake_lock);
    for (struct range **link = &ranges; (r = *link); link = &r->next) {
        if (r->at == (uintptr_t)p) {
            *link = r->next;
            bytes = r->bytes;
            free(r);
            break;
        }
    }
    pthread_mutex_unlock(&fake_lock);
    if (!bytes)
        fake_wrong("memory is freed that was not allocated");
    fake_count(-1);
    return bytes;
}

/* Memory mapped on demand lies in a file that is mapped twice. Kernels and adapters use one place. The CPU
 * uses the other, which holds nothing where memory is `hidden`: mapped for adapters. Emulated kernels use
 * addresses as they are. */
static struct hidden {
    nb_cu_ptr at;
    struct hidden *next;
} * hidden;

static void hide(nb_cu_ptr at)
{
    struct hidden *h = malloc(sizeof(*h));

    if (!h)
        abort();
    pthread_mutex_lock(&fake_lock);
    *h = (struct hidden){at, hidden};
    hidden = h;
    pthread_mutex_unlock(&fake_lock);
}

/* Return whether it is hidden. `end`: not from now on. */
static int is_hidden(nb_cu_ptr at, int end)
{
    struct hidden *h;

    pthread_mutex_lock(&fake_lock);
    for (struct hidden **link = &hidden; (h = *link); link = &h->next) {
        if (h->at != at)
            continue;
        if (end) {
            *link = h->next;
            free(h);
        }
        break;
    }
    pthread_mutex_unlock(&fake_lock);
    return h != NULL;
}

static void protect(nb_cu_ptr at, size_t bytes, int how, int how_seen)
{
    void *p = (void *)(uintptr_t)at, *seen = fake_seen_at(p);

    if (mprotect(p, bytes, how) || (seen != p && mprotect(seen, bytes, how_seen)))
        fake_wrong("no access");
}

void *fake_gpu_memory(size_t bytes, void **seen)
{
    void *at = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    *seen = calloc(1, bytes);
    if (at == MAP_FAILED || !*seen)
        abort();
    know_as(at, bytes, FAKE_DEVICE, *seen);
    return at;
}

void fake_gpu_memory_free(void *at)
{
    void *seen = fake_seen_at(at);

    munmap(at, forget(at));
    free(seen);
}

void *fake_gpu_window(size_t bytes)
{
    void *at = aligned_alloc(4096, (bytes + 4095) & ~(size_t)4095);

    if (!at)
        abort();
    know(at, bytes, FAKE_DEVICE);
    return at;
}

void fake_gpu_window_free(void *at)
{
    forget(at);
    free(at);
}

nb_cu_result fMemHostAlloc(void **p, size_t bytes, unsigned flags)
{
    CALL_IN_CONTEXT("cuMemHostAlloc");
    if (fake.waiting)
        fake.waiting();
    if (!(flags & NB_CU_HOST_DEVICEMAP))
        fake_wrong("pinned memory that is not mapped");
    *p = aligned_alloc(4096, (bytes + 4095) & ~(size_t)4095);
    if (!*p)
        return NB_CU_OUT_OF_MEMORY;
    memset(*p, 0xa5, bytes);
    know(*p, bytes, FAKE_PINNED);
    return 0;
}

nb_cu_result fMemFreeHost(void *p)
{
    forget(p);
    free(p);
    CALL_IN_CONTEXT("cuMemFreeHost");
    return 0;
}

nb_cu_result fMemHostGetDevicePointer_v2(nb_cu_ptr *at, void *p, unsigned flags)
{
    (void)flags;
    CALL_IN_CONTEXT("cuMemHostGetDevicePointer");
    *at = (uintptr_t)p;
    return 0;
}

enum { PAGE = 4096, LARGE = 1 << 20, TILE = 4 << 20 };

static size_t whole_pages(size_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

void fake_zero(void *at, size_t n)
{
    uint8_t *to = at;
    const size_t head = -(uintptr_t)to % PAGE, whole = n < head + LARGE ? 0 : (n - head) / PAGE * PAGE;

    if (whole && madvise(to + head, whole, MADV_REMOVE) == 0) {
        memset(to, 0, head);
        memset(to + head + whole, 0, n - head - whole);
    } else {
        memset(to, 0, n);
    }
}

/* Return large memory full of 0x5a. It maps the pages of one tile again and again. Linux copies a page when a
 * test writes to it. Tests write few pages, so this costs less than to fill all. An access behind the
 * memory's last page ends the program. */
static void *large_memory(size_t bytes)
{
    const size_t whole = whole_pages(bytes);
    const int fd = memfd_create("fake GPU", MFD_CLOEXEC);
    char *at = mmap(NULL, whole + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *tile;

    if (fd < 0 || ftruncate(fd, TILE) || at == MAP_FAILED)
        abort();
    tile = mmap(NULL, TILE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (tile == MAP_FAILED)
        abort();
    memset(tile, 0x5a, TILE);
    munmap(tile, TILE);
    for (size_t i = 0; i < whole; i += TILE)
        if (mmap(at + i, whole - i < TILE ? whole - i : TILE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED,
                 fd, 0) == MAP_FAILED)
            abort();
    close(fd);
    return at;
}

nb_cu_result fMemAlloc_v2(nb_cu_ptr *at, size_t bytes)
{
    void *p;
    CALL_IN_CONTEXT("cuMemAlloc");
    if (bytes >= LARGE) {
        p = large_memory(bytes);
    } else {
        p = aligned_alloc(PAGE, whole_pages(bytes));
        if (!p)
            return NB_CU_OUT_OF_MEMORY;
        memset(p, 0x5a, bytes);
    }
    know(p, bytes, FAKE_DEVICE);
    *at = (uintptr_t)p;
    return 0;
}

nb_cu_result fMemFree_v2(nb_cu_ptr at)
{
    void *p = (void *)(uintptr_t)at;
    const size_t bytes = forget(p);

    if (bytes >= LARGE)
        munmap(p, whole_pages(bytes) + PAGE);
    else
        free(p);
    CALL_IN_CONTEXT("cuMemFree");
    return 0;
}

static size_t total(void)
{
    return fake.memory ? fake.memory : (size_t)256 << 20;
}

nb_cu_result fMemGetInfo_v2(size_t *left, size_t *all)
{
    CALL_IN_CONTEXT("cuMemGetInfo");
    pthread_mutex_lock(&fake_lock);
    *all = total();
    *left = total() - created;
    pthread_mutex_unlock(&fake_lock);
    return 0;
}

nb_cu_result fMemGetAllocationGranularity(size_t *granularity, const struct nb_cu_alloc_prop *prop,
                                          int option)
{
    (void)prop;
    (void)option;
    CALL_IN_CONTEXT("cuMemGetAllocationGranularity");
    *granularity = (size_t)2 << 20;
    return 0;
}

nb_cu_result fMemAddressReserve(nb_cu_ptr *at, size_t bytes, size_t align, nb_cu_ptr wish,
                                unsigned long long flags)
{
    void *p, *seen;
    int fd;
    (void)align;
    (void)wish;
    (void)flags;
    CALL_IN_CONTEXT("cuMemAddressReserve");
    fd = memfd_create("fake GPU", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)bytes))
        abort();
    p = mmap(NULL, bytes, PROT_NONE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    seen = mmap(NULL, bytes, PROT_NONE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    close(fd);
    if (p == MAP_FAILED || seen == MAP_FAILED)
        return NB_CU_OUT_OF_MEMORY;
    know_as(p, bytes, FAKE_DEVICE, fake.emulate ? NULL : seen);
    if (fake.emulate)
        munmap(seen, bytes);
    *at = (uintptr_t)p;
    return 0;
}

nb_cu_result fMemAddressFree(nb_cu_ptr at, size_t bytes)
{
    void *p = (void *)(uintptr_t)at, *seen = fake_seen_at(p);
    if (forget(p) != bytes)
        fake_wrong("addresses are freed in part");
    munmap(p, bytes);
    if (seen != p)
        munmap(seen, bytes);
    CALL_IN_CONTEXT("cuMemAddressFree");
    return 0;
}

nb_cu_result fMemCreate(unsigned long long *handle, size_t bytes, const struct nb_cu_alloc_prop *prop,
                        unsigned long long flags)
{
    (void)flags;
    CALL_IN_CONTEXT("cuMemCreate");
    if (fake.waiting)
        fake.waiting();
    if (prop->type != NB_CU_ALLOC_PINNED || prop->location.type != NB_CU_LOCATION_DEVICE)
        fake_wrong("memory somewhere else");
    pthread_mutex_lock(&fake_lock);
    if (bytes > total() - created) {
        pthread_mutex_unlock(&fake_lock);
        return NB_CU_OUT_OF_MEMORY;
    }
    created += bytes;
    pthread_mutex_unlock(&fake_lock);
    fake_count(1);
    *handle = bytes | prop->gpu_direct_rdma;
    return 0;
}

nb_cu_result fMemRelease(unsigned long long handle)
{
    pthread_mutex_lock(&fake_lock);
    created -= handle & ~1ull;
    pthread_mutex_unlock(&fake_lock);
    fake_count(-1);
    CALL_IN_CONTEXT("cuMemRelease");
    return 0;
}

nb_cu_result fMemMap(nb_cu_ptr at, size_t bytes, size_t offset, unsigned long long handle,
                     unsigned long long flags)
{
    (void)offset;
    (void)flags;
    CALL_IN_CONTEXT("cuMemMap");
    if ((handle & ~1ull) != bytes)
        fake_wrong("a map of another size");
    if (handle & 1 && !fake.emulate)
        hide(at);
    fake_count(1);
    return 0;
}

nb_cu_result fMemUnmap(nb_cu_ptr at, size_t bytes)
{
    protect(at, bytes, PROT_NONE, PROT_NONE);
    is_hidden(at, 1);
    fake_count(-1);
    CALL_IN_CONTEXT("cuMemUnmap");
    return 0;
}

nb_cu_result fMemSetAccess(nb_cu_ptr at, size_t bytes, const struct nb_cu_access *access, size_t n)
{
    const int all = PROT_READ | PROT_WRITE;
    CALL_IN_CONTEXT("cuMemSetAccess");
    if (n != 1 || access->flags != NB_CU_ACCESS_READWRITE)
        fake_wrong("no access");
    protect(at, bytes, is_hidden(at, 0) ? PROT_NONE : all, all);
    return 0;
}

nb_cu_result fMemGetHandleForAddressRange(void *handle, nb_cu_ptr at, size_t bytes, int type,
                                          unsigned long long flags)
{
    (void)flags;
    CALL_IN_CONTEXT("cuMemGetHandleForAddressRange");
    if (fake.no_dmabuf || type != NB_CU_HANDLE_DMABUF || at % 4096 || bytes % 4096)
        fake_wrong("a descriptor of other memory");
    *(int *)handle = open("/dev/null", O_RDWR | O_CLOEXEC);
    return *(int *)handle < 0 ? FAKE_INVALID : 0;
}

nb_cu_result fPointerGetAttribute(void *out, int attribute, nb_cu_ptr at)
{
    enum fake_memory type = fake.other;

    CALL_IN_CONTEXT("cuPointerGetAttribute");
    pthread_mutex_lock(&fake_lock);
    for (struct range *r = ranges; r; r = r->next)
        if (at - r->at < r->bytes)
            type = r->type;
    pthread_mutex_unlock(&fake_lock);
    if (type == FAKE_UNKNOWN)
        return FAKE_INVALID;
    if (attribute == NB_CU_POINTER_MEMORY_TYPE)
        *(unsigned *)out = (unsigned)type;
    else
        *(nb_cu_ptr *)out = at;
    return 0;
}
