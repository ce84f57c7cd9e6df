/* SPDX-License-Identifier: Apache-2.0 */
/* See library.h. x86-64. */
#include "library.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct layout at;
static void *library;

_Noreturn void die(const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    fprintf(stderr, "FAIL: ");
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
    _exit(1);
}

/* ---- The layout ---------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    struct place *place;
} members[] = {
#define ROW(member, text) {text, &at.member},
    LAYOUT(ROW)
#undef ROW
};
#define MEMBERS (sizeof(members) / sizeof(members[0]))

void library_names(void)
{
    for (size_t i = 0; i < MEMBERS; i++)
        puts(members[i].name);
}

void library_layout(const char *file)
{
    FILE *f = fopen(file, "r");
    char line[256], name[128];
    size_t found = 0;

    while (f && fgets(line, sizeof(line), f)) {
        struct place p = {0};
        const int n = sscanf(line, "%127s %d %d %d", name, &p.byte, &p.size, &p.bits);
        if (n < 3)
            continue;
        if (n == 4) {
            p.bit = p.size;
            p.size = 0;
        }
        for (size_t i = 0; i < MEMBERS; i++)
            if (strcmp(name, members[i].name) == 0) {
                *members[i].place = p;
                found++;
            }
    }
    if (found != MEMBERS)
        die("%s names %zu of %zu members", file, found, MEMBERS);
    fclose(f);
}

const void *place(const void *p, struct place where)
{
    return (const char *)p + where.byte;
}

void *pointer_at(const void *p, struct place where)
{
    void *v;

    memcpy(&v, place(p, where), sizeof(v));
    return v;
}

int int_at(const void *p, struct place where)
{
    int v;

    memcpy(&v, place(p, where), sizeof(v));
    return v;
}

unsigned u8_at(const void *p, struct place where)
{
    return *(const unsigned char *)place(p, where);
}

uint64_t u64_at(const void *p, struct place where)
{
    uint64_t v;

    memcpy(&v, place(p, where), sizeof(v));
    return v;
}

int64_t number_at(const void *p, struct place where)
{
    return where.size == 4 ? int_at(p, where) : (int64_t)u64_at(p, where);
}

unsigned bits_at(const void *p, struct place where)
{
    uint32_t v = 0;

    memcpy(&v, place(p, where), (size_t)(where.bit + where.bits + 7) / 8);
    return v >> where.bit & ((1u << where.bits) - 1);
}

/* ---- The library --------------------------------------------------------------------------------------- */

/* Lead calls of the function at `from` to `to`. */
static void jump(unsigned char *from, void (*to)(void))
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)from & ~(page - 1);
    unsigned char code[] = {0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xe0}; /* mov to, %rax; jmp *%rax */

    memcpy(code + 2, &to, sizeof(to));
    if (mprotect((void *)begin, 2 * page, PROT_READ | PROT_WRITE | PROT_EXEC))
        die("mprotect of the library's code");
    memcpy(from, code, sizeof(code));
}

/* Return code that calls cuda_missing with this name. */
static void (*missing(const char *name))(void)
{
    static unsigned char *room;
    static size_t used;
    int (*const target)(const char *) = cuda_missing;
    unsigned char code[] = {0x48, 0xbf, 0, 0, 0, 0, 0, 0, 0, 0,              /* mov name, %rdi */
                            0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xe0}; /* mov target, %rax; jmp */
    void (*result)(void);

    if (!room) {
        room = mmap(NULL, 1 << 17, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (room == MAP_FAILED)
            die("no memory for code");
    }
    if (used + sizeof(code) > 1 << 17)
        die("the library has too many functions of the CUDA runtime");
    memcpy(code + 2, &name, sizeof(name));
    memcpy(code + 12, &target, sizeof(target));
    memcpy(room + used, code, sizeof(code));
    *(void **)&result = room + used;
    used += 32;
    return result;
}

static void (*ours(const char *name))(void)
{
    for (const struct cuda_function *f = cuda_functions; f->name; f++)
        if (strcmp(f->name, name) == 0)
            return f->function;
    return missing(name);
}

/* A function of the runtime: "cuda" and a capital. */
static int is_runtime(const char *name)
{
    return strncmp(name, "cuda", 4) == 0 && name[4] >= 'A' && name[4] <= 'Z';
}

static void redirect(const char *file, char *base)
{
    const int fd = open(file, O_RDONLY | O_CLOEXEC);
    struct stat st;
    const char *image = MAP_FAILED;
    size_t found = 0;

    if (fd >= 0 && !fstat(fd, &st))
        image = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (image == MAP_FAILED)
        die("cannot read %s", file);
    close(fd);
    const Elf64_Ehdr *elf = (const void *)image;
    const Elf64_Shdr *section = (const void *)(image + elf->e_shoff);
    for (int s = 0; s < elf->e_shnum; s++) {
        if (section[s].sh_type != SHT_SYMTAB)
            continue;
        const Elf64_Sym *symbol = (const void *)(image + section[s].sh_offset);
        const char *strings = image + section[section[s].sh_link].sh_offset;
        for (size_t i = 0; i < section[s].sh_size / sizeof(*symbol); i++) {
            const char *name = strings + symbol[i].st_name;
            if (ELF64_ST_TYPE(symbol[i].st_info) != STT_FUNC || symbol[i].st_shndx == SHN_UNDEF ||
                !is_runtime(name))
                continue;
            jump((unsigned char *)base + symbol[i].st_value, ours(name));
            found++;
        }
    }
    if (found < 100)
        die("%s has %zu functions of a CUDA runtime: it is stripped, or not NVIDIA's", file, found);
    /* Names in `missing` point into the image, which therefore stays mapped. */
}

void library_open(const char *file)
{
    struct link_map *map;

    library = dlopen(file, RTLD_NOW | RTLD_GLOBAL);
    if (!library || dlinfo(library, RTLD_DI_LINKMAP, &map))
        die("%s", dlerror());
    redirect(file, (char *)map->l_addr);
}

void *library_function(const char *name, int optional)
{
    void *f = dlsym(library, name);

    if (!f && !optional)
        die("the library has no %s", name);
    return f;
}
