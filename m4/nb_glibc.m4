dnl SPDX-License-Identifier: Apache-2.0
dnl
dnl NB_CHECK_GLIBC: decide whether installed files must load with glibc 2.28 and later, whatever glibc builds
dnl them (plugin/base/old_glibc.c). Set a conditional and NB_OLD_GLIBC_LDFLAGS: old systems have some
dnl functions in libpthread and libdl, so the linker looks for them there. Systems whose libc has these
dnl functions still have both libraries, empty. The flags are one argument, because libtool moves -l away from
dnl the options before it. Call after NB_SANITIZERS, whose libraries put functions before libc's.
AC_DEFUN([NB_CHECK_GLIBC], [
    AC_REQUIRE([NB_SANITIZERS])
    AC_ARG_ENABLE([old-glibc],
        [AS_HELP_STRING([--disable-old-glibc],
            [take the newest symbols of this machine's C library, instead of those of glibc 2.28])],
        [], [enable_old_glibc=auto])
    nb_old_glibc=no
    nb_old_glibc_summary="this machine's and later (switched off)"
    NB_OLD_GLIBC_LDFLAGS="-Wl,--push-state,--no-as-needed,-l:libpthread.so.0,-l:libdl.so.2,--pop-state"
    AS_IF([test "x$enable_old_glibc" != xno && test -n "$NB_SAN_CFLAGS"], [
        nb_old_glibc_summary="this machine's and later (sanitizers)"
        AS_IF([test "x$enable_old_glibc" = xyes], [AC_MSG_ERROR([--enable-old-glibc excludes sanitizers])])
    ], [test "x$enable_old_glibc" != xno], [
        AC_MSG_CHECKING([whether symbols of glibc 2.28 can be linked])
        nb_saved_ldflags=$LDFLAGS
        nb_saved_libs=$LIBS
        LDFLAGS="$LDFLAGS $NB_OLD_GLIBC_LDFLAGS"
        LIBS="-lm $LIBS"
        AC_LINK_IFELSE([AC_LANG_SOURCE([
#include "$srcdir/plugin/base/old_glibc.c"
#include "$srcdir/plugin/base/old_glibc_start.c"
int main(void) { return 0; }])], [nb_old_glibc=yes; nb_old_glibc_summary="2.28 and later"],
            [nb_old_glibc_summary="this machine's and later (no symbols of 2.28)"])
        LDFLAGS=$nb_saved_ldflags
        LIBS=$nb_saved_libs
        AC_MSG_RESULT([$nb_old_glibc])
        AS_IF([test "x$enable_old_glibc-$nb_old_glibc" = xyes-no],
            [AC_MSG_ERROR([--enable-old-glibc was given, but the old symbols cannot be linked])])
    ])
    AS_IF([test $nb_old_glibc = no], [NB_OLD_GLIBC_LDFLAGS=],
        [AC_DEFINE([NB_OLD_GLIBC], [1], [Names are bound to symbols that glibc 2.28 has])])
    AC_SUBST([NB_OLD_GLIBC_LDFLAGS])
    AM_CONDITIONAL([NB_OLD_GLIBC], [test $nb_old_glibc = yes])
])
