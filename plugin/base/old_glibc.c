// SPDX-License-Identifier: Apache-2.0
// The same binary for the C libraries of 2.28 and later. The linker takes the newest version of each symbol
// that the build machine has. glibc gave new versions to unchanged functions when 2.34 moved libpthread and
// libdl into libc, when 2.33 made stat a function, and when 2.29 dropped errors in the manner of System V
// from libm. Here each such name is a hidden function that jumps to the old version, which every later C
// library keeps. The linker binds all uses of the name to it. It is a jump and not a call, since dlopen looks
// at the address that it returns to. The file is compiled where configure finds that this works
// (NB_OLD_GLIBC). packages/test-old-glibc.sh finds missing names.
#include <features.h>

#if defined(__x86_64__)
#define NB_JUMP(target) "jmp *" target "@GOTPCREL(%rip)\n"
// pick(x86_64's version, aarch64's version). Most functions have only their architecture's oldest version.
#define NB_PICK(x86_64, aarch64) x86_64
#elif defined(__aarch64__)
#define NB_JUMP(target) \
    "adrp x16, :got:" target "\n" \
    "ldr x16, [x16, :got_lo12:" target "]\n" \
    "br x16\n"
#define NB_PICK(x86_64, aarch64) aarch64
#else
#error "which versions of symbols does this architecture have? configure with --disable-old-glibc"
#endif

// `name` is glibc's function `old` at `version`. CFI says that the frame is still the caller's.
// clang-format off
#define NB_AT(name, old, version)                          \
    __asm__(".text\n"                                      \
            ".p2align 4\n"                                 \
            ".weak " #name "\n"                            \
            ".hidden " #name "\n"                          \
            ".type " #name ", %function\n"                 \
            #name ":\n"                                    \
            ".cfi_startproc\n"                             \
            NB_JUMP("nb_old_" #name)                       \
            ".cfi_endproc\n"                               \
            ".size " #name ", . - " #name "\n"             \
            ".symver nb_old_" #name ", " #old "@" version "\n")
// clang-format on
#define NB_FIRST(name) NB_AT(name, name, NB_PICK("GLIBC_2.2.5", "GLIBC_2.17"))

// A name whose only version is the old one must not stand here: the linker would take the function itself for
// it, and the function would jump to itself (seen with glibc 2.31). Each name therefore depends on the C
// library of its change.
// libpthread, libdl: in libc since 2.34 (pthread_sigmask: 2.32)
#if __GLIBC_PREREQ(2, 32)
NB_FIRST(pthread_sigmask);
#endif
#if __GLIBC_PREREQ(2, 34)
NB_FIRST(pthread_create);
NB_FIRST(pthread_detach);
NB_FIRST(pthread_join);
NB_FIRST(pthread_mutex_trylock);
NB_FIRST(pthread_once);
NB_AT(pthread_condattr_setclock, pthread_condattr_setclock, NB_PICK("GLIBC_2.3.3", "GLIBC_2.17"));
NB_AT(pthread_setaffinity_np, pthread_setaffinity_np, NB_PICK("GLIBC_2.3.4", "GLIBC_2.17"));
NB_AT(pthread_setname_np, pthread_setname_np, NB_PICK("GLIBC_2.12", "GLIBC_2.17"));
NB_FIRST(dladdr);
NB_FIRST(dlclose);
NB_FIRST(dlerror);
NB_FIRST(dlopen);
NB_FIRST(dlsym);
NB_FIRST(dlvsym);
#endif

// libm: without System V's errors since 2.29. Values are the same, and callers ignore errno
// (-fno-math-errno).
#if __GLIBC_PREREQ(2, 29)
NB_FIRST(exp2);
NB_FIRST(log);
NB_FIRST(log2);
NB_FIRST(pow);
#endif

// The headers of 2.38 and later use these names. The older functions do not read "0b" as binary.
NB_AT(__isoc23_fscanf, __isoc99_fscanf, NB_PICK("GLIBC_2.7", "GLIBC_2.17"));
NB_AT(__isoc23_sscanf, __isoc99_sscanf, NB_PICK("GLIBC_2.7", "GLIBC_2.17"));
NB_AT(__isoc23_strtol, strtol, NB_PICK("GLIBC_2.2.5", "GLIBC_2.17"));
NB_AT(__isoc23_strtoll, strtoll, NB_PICK("GLIBC_2.2.5", "GLIBC_2.17"));
NB_AT(__isoc23_strtoul, strtoul, NB_PICK("GLIBC_2.2.5", "GLIBC_2.17"));
NB_AT(__isoc23_strtoull, strtoull, NB_PICK("GLIBC_2.2.5", "GLIBC_2.17"));

// Functions since 2.33. Earlier headers turned them into calls of __xstat, whose first argument is the layout
// of struct stat. It is the kernel's here.
struct stat;
#define NB_STAT(name, old, type) \
    int old(int layout, type what, struct stat *st); \
    __attribute__((weak, visibility("hidden"))) int name(type what, struct stat *st); \
    int name(type what, struct stat *st) \
    { \
        return old(NB_PICK(1, 0), what, st); \
    }
NB_STAT(stat, __xstat, const char *)
NB_STAT(lstat, __lxstat, const char *)
NB_STAT(fstat, __fxstat, int)
