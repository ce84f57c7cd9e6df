dnl SPDX-License-Identifier: Apache-2.0
dnl
dnl NB_SANITIZERS: --enable-asan, --enable-ubsan, --enable-tsan. Set NB_SAN_CFLAGS, with which everything is
dnl compiled and linked. Set NB_NO_TSAN_CFLAGS, which leaves ThreadSanitizer out of a file that has no threads
dnl but takes much time. Set NB_VECTOR_CFLAGS, with which vector kernels compile in a third of the time:
dnl checks of addresses are calls, and checks that repeat the check of a pointer are left out. Set the
dnl conditional NB_SANITIZED.
AC_DEFUN([NB_SANITIZERS], [
    AC_ARG_ENABLE([asan], [AS_HELP_STRING([--enable-asan], [build with AddressSanitizer])],
        [], [enable_asan=no])
    AC_ARG_ENABLE([ubsan], [AS_HELP_STRING([--enable-ubsan], [build with UndefinedBehaviorSanitizer])],
        [], [enable_ubsan=no])
    AC_ARG_ENABLE([tsan], [AS_HELP_STRING([--enable-tsan], [build with ThreadSanitizer])],
        [], [enable_tsan=no])
    AS_IF([test "x$enable_tsan" != xno && test "x$enable_asan" != xno],
        [AC_MSG_ERROR([--enable-tsan and --enable-asan exclude each other])])

    NB_SAN_CFLAGS=
    NB_NO_TSAN_CFLAGS=
    NB_VECTOR_CFLAGS=
    nb_sanitizers=
    AS_IF([test "x$enable_asan" != xno],
        [NB_SAN_CFLAGS="$NB_SAN_CFLAGS -fsanitize=address"; nb_sanitizers="$nb_sanitizers address"
         NB_TRY_FLAG([NB_VECTOR_CFLAGS], [--param asan-instrumentation-with-call-threshold=0])])
    AS_IF([test "x$enable_ubsan" != xno],
        [NB_SAN_CFLAGS="$NB_SAN_CFLAGS -fsanitize=undefined -fno-sanitize-recover=undefined"
         nb_sanitizers="$nb_sanitizers undefined"
         NB_TRY_FLAG([NB_VECTOR_CFLAGS], [-fno-sanitize=null,object-size,pointer-overflow])])
    AS_IF([test "x$enable_tsan" != xno],
        [NB_SAN_CFLAGS="$NB_SAN_CFLAGS -fsanitize=thread"; NB_NO_TSAN_CFLAGS=-fno-sanitize=thread; nb_sanitizers="$nb_sanitizers thread"
         # ThreadSanitizer does not understand fences. It may report too much, never too little.
         NB_TRY_FLAG([NB_SAN_CFLAGS], [-Wno-tsan])])
    AS_IF([test -n "$NB_SAN_CFLAGS"], [
        NB_SAN_CFLAGS="$NB_SAN_CFLAGS -fno-omit-frame-pointer"
        AC_MSG_CHECKING([whether programs with$NB_SAN_CFLAGS link])
        nb_saved_cflags=$CFLAGS
        CFLAGS="$CFLAGS $NB_SAN_CFLAGS"
        AC_LINK_IFELSE([AC_LANG_PROGRAM([], [])], [AC_MSG_RESULT([yes])],
            [AC_MSG_RESULT([no])
             AC_MSG_ERROR([the sanitizer's run-time library is missing])])
        CFLAGS=$nb_saved_cflags
    ])
    AM_CONDITIONAL([NB_SANITIZED], [test -n "$NB_SAN_CFLAGS"])
    AC_SUBST([NB_SAN_CFLAGS])
    AC_SUBST([NB_NO_TSAN_CFLAGS])
    AC_SUBST([NB_VECTOR_CFLAGS])
])

dnl NB_COVERAGE: --enable-coverage counts which lines run, for "make coverage". Sets NB_COVERAGE_CFLAGS.
AC_DEFUN([NB_COVERAGE], [
    AC_ARG_ENABLE([coverage], [AS_HELP_STRING([--enable-coverage], [count which lines run ("make coverage")])],
        [], [enable_coverage=no])
    NB_COVERAGE_CFLAGS=
    AS_IF([test "x$enable_coverage" != xno],
        [NB_COVERAGE_CFLAGS="--coverage -fprofile-update=atomic -DNB_COVERAGE=1"])
    AC_SUBST([NB_COVERAGE_CFLAGS])
])
