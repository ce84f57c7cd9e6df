// SPDX-License-Identifier: Apache-2.0
// How an installed tool starts with the C libraries of 2.28 and later (old_glibc.c says why). Until 2.33 a
// program contained the function that runs its constructors. Since 2.34 the C library runs them itself, under
// a new version of __libc_start_main. This file hands such a function to the old version, as programs of that
// time did.
#include <stddef.h>

typedef int main_fn(int, char **, char **);
typedef void init_fn(int, char **, char **);
typedef void fini_fn(void);

int nb_old_libc_start_main(main_fn *, int, char **, init_fn *, fini_fn *, fini_fn *, void *);
#if defined(__x86_64__)
__asm__(".symver nb_old_libc_start_main, __libc_start_main@GLIBC_2.2.5");
#elif defined(__aarch64__)
__asm__(".symver nb_old_libc_start_main, __libc_start_main@GLIBC_2.17");
#endif

// Symbols of the linker: constructors of the program itself, not of its libraries.
extern init_fn *const __init_array_start[] __attribute__((visibility("hidden")));
extern init_fn *const __init_array_end[] __attribute__((visibility("hidden")));

static void run_constructors(int argc, char **argv, char **envp)
{
    for (init_fn *const *f = __init_array_start; f < __init_array_end; f++)
        (*f)(argc, argv, envp);
}

__attribute__((visibility("hidden"))) int __libc_start_main(main_fn *main, int argc, char **argv,
                                                            init_fn *init, fini_fn *fini, fini_fn *rtld_fini,
                                                            void *stack_end);

// crt1.o calls it. Before 2.34 it passes functions of its own, which this function keeps.
int __libc_start_main(main_fn *main, int argc, char **argv, init_fn *init, fini_fn *fini, fini_fn *rtld_fini,
                      void *stack_end)
{
    return nb_old_libc_start_main(main, argc, argv, init ? init : run_constructors, fini, rtld_fini,
                                  stack_end);
}
