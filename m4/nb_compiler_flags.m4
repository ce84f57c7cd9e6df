dnl SPDX-License-Identifier: Apache-2.0
dnl
dnl NB_TRY_FLAG(VARIABLE, FLAG): append FLAG to VARIABLE when the compiler takes it without complaint.
AC_DEFUN([NB_TRY_FLAG], [
    AS_VAR_PUSHDEF([nb_cache], [nb_cv_cflag_$2])
    AC_CACHE_CHECK([whether $CC takes $2], [nb_cache], [
        nb_saved_cflags=$CFLAGS
        # Clang only warns about options it does not know, hence -Werror for the probe.
        CFLAGS="$CFLAGS -Werror $2"
        AC_COMPILE_IFELSE([AC_LANG_PROGRAM([], [])],
            [AS_VAR_SET([nb_cache], [yes])], [AS_VAR_SET([nb_cache], [no])])
        CFLAGS=$nb_saved_cflags
    ])
    AS_VAR_IF([nb_cache], [yes], [AS_VAR_APPEND([$1], [" $2"])])
    AS_VAR_POPDEF([nb_cache])
])

dnl NB_TRY_LINK_FLAG(VARIABLE, FLAG): the same for the linker, tried on a shared object.
AC_DEFUN([NB_TRY_LINK_FLAG], [
    AS_VAR_PUSHDEF([nb_cache], [nb_cv_ldflag_$2])
    AC_CACHE_CHECK([whether the linker takes $2], [nb_cache], [
        nb_saved_cflags=$CFLAGS
        CFLAGS="$CFLAGS -fPIC -shared $2"
        AC_LINK_IFELSE([AC_LANG_SOURCE([int nb_probe(void); int nb_probe(void) { return 0; }])],
            [AS_VAR_SET([nb_cache], [yes])], [AS_VAR_SET([nb_cache], [no])])
        CFLAGS=$nb_saved_cflags
    ])
    AS_VAR_IF([nb_cache], [yes], [AS_VAR_APPEND([$1], [" $2"])])
    AS_VAR_POPDEF([nb_cache])
])

dnl NB_COMPILER_FLAGS: set NB_WARN_CFLAGS, NB_CFLAGS and NB_MODULE_LDFLAGS.
AC_DEFUN([NB_COMPILER_FLAGS], [
    NB_WARN_CFLAGS=
    for nb_flag in \
        -Wall -Wextra -Wshadow -Wformat=2 -Wundef -Wpointer-arith -Wwrite-strings -Wvla \
        -Wstrict-prototypes -Wmissing-prototypes -Wold-style-definition -Wmissing-declarations \
        -Wduplicated-cond -Wduplicated-branches
    do
        NB_TRY_FLAG([NB_WARN_CFLAGS], [$nb_flag])
    done
    nb_warning_count=`set -- $NB_WARN_CFLAGS; echo $[]#`

    AC_ARG_ENABLE([werror], [AS_HELP_STRING([--enable-werror], [treat compiler warnings as errors])],
        [], [enable_werror=no])
    AS_IF([test "x$enable_werror" != xno], [AS_VAR_APPEND([NB_WARN_CFLAGS], [" -Werror"])])

    # Arithmetic is specified to the bit, so the compiler must not fuse multiplications and additions, and
    # -ffast-math is forbidden. The code never reads errno of libm.
    NB_CFLAGS=
    for nb_flag in \
        -fvisibility=hidden -ffp-contract=off -fno-math-errno -fno-semantic-interposition
    do
        NB_TRY_FLAG([NB_CFLAGS], [$nb_flag])
    done
    AS_IF([test "x$nb_cv_cflag__ffp_contract_off" != xyes],
        [AC_MSG_ERROR([the compiler must be able to switch off fused multiply-add (-ffp-contract=off)])])

    # nodelete: some NCCL releases unload the library while a part of it is still in use.
    # Bsymbolic: references inside the library stay inside, whatever the job has loaded.
    NB_MODULE_LDFLAGS=
    for nb_flag in \
        -Wl,-z,nodelete -Wl,-Bsymbolic -Wl,-z,relro -Wl,-z,now -Wl,--as-needed
    do
        NB_TRY_LINK_FLAG([NB_MODULE_LDFLAGS], [$nb_flag])
    done

    AC_SUBST([NB_WARN_CFLAGS])
    AC_SUBST([NB_CFLAGS])
    AC_SUBST([NB_MODULE_LDFLAGS])
])

dnl NB_SIMD: flags of the sources that need more than the base instruction set. Such code runs only after a
dnl look at the CPU, so every compiler that can builds it.
AC_DEFUN([NB_SIMD], [
    NB_AVX2_CFLAGS=
    NB_AVX512_CFLAGS=
    nb_simd=portable
    nb_have_avx2=no
    nb_have_avx512=no
    AS_CASE([$host_cpu], [x86_64], [
        nb_try="-mavx2 -mf16c -mbmi2"
        NB_TRY_FLAG([NB_AVX2_CFLAGS], [$nb_try])
        AS_IF([test -n "$NB_AVX2_CFLAGS"], [nb_have_avx2=yes; nb_simd="$nb_simd avx2"])
        nb_try="-mavx2 -mf16c -mbmi2 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vbmi"
        NB_TRY_FLAG([NB_AVX512_CFLAGS], [$nb_try])
        AS_IF([test -n "$NB_AVX512_CFLAGS"], [nb_have_avx512=yes; nb_simd="$nb_simd avx512"])
    ], [aarch64], [nb_simd="$nb_simd neon"])
    AS_IF([test $nb_have_avx2 = yes], [AC_DEFINE([NB_HAVE_AVX2], [1], [The AVX2 codecs are built])])
    AS_IF([test $nb_have_avx512 = yes], [AC_DEFINE([NB_HAVE_AVX512], [1], [The AVX-512 codecs are built])])
    AM_CONDITIONAL([NB_AVX2], [test $nb_have_avx2 = yes])
    AM_CONDITIONAL([NB_AVX512], [test $nb_have_avx512 = yes])
    AC_SUBST([NB_AVX2_CFLAGS])
    AC_SUBST([NB_AVX512_CFLAGS])
])
