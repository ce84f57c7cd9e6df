dnl SPDX-License-Identifier: Apache-2.0
dnl
dnl NB_SANITIZERS: --enable-asan, --enable-ubsan, --enable-tsan. Set NB_SAN_CFLAGS, with which everything is
dnl compiled and linked. Set NB_DATA_CFLAGS for files of tests that only make values, and take most of a test's
dnl time: with vectors and without sanitizers. Set the conditional NB_SANITIZED.
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
    NB_DATA_CFLAGS=-ftree-vectorize
    NB_TRY_FLAG([NB_DATA_CFLAGS], [-fvect-cost-model=dynamic])
    nb_sanitizers=
    AS_IF([test "x$enable_asan" != xno],
        [NB_SAN_CFLAGS="$NB_SAN_CFLAGS -fsanitize=address"; nb_sanitizers="$nb_sanitizers address"])
    AS_IF([test "x$enable_ubsan" != xno],
        [NB_SAN_CFLAGS="$NB_SAN_CFLAGS -fsanitize=undefined -fno-sanitize-recover=undefined"
         nb_sanitizers="$nb_sanitizers undefined"])
    AS_IF([test "x$enable_tsan" != xno],
        [NB_SAN_CFLAGS="$NB_SAN_CFLAGS -fsanitize=thread"; nb_sanitizers="$nb_sanitizers thread"
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
        AS_VAR_APPEND([NB_DATA_CFLAGS], [" -fno-sanitize=all"])
    ])
    AM_CONDITIONAL([NB_SANITIZED], [test -n "$NB_SAN_CFLAGS"])
    AC_SUBST([NB_SAN_CFLAGS])
    AC_SUBST([NB_DATA_CFLAGS])
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
