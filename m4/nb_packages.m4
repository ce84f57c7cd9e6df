dnl SPDX-License-Identifier: Apache-2.0
dnl
dnl Optional packages. Each macro sets a conditional, the compiler's options, and a line for the summary.

dnl NB_CHECK_LIB_CHECK: the Check unit test library. Without it, the unit tests report a skip.
AC_DEFUN([NB_CHECK_LIB_CHECK], [
    PKG_CHECK_MODULES([CHECK], [check >= 0.12],
        [nb_have_check=yes; nb_check_summary="yes"],
        [nb_have_check=no; nb_check_summary="no (install Check)"])
    AM_CONDITIONAL([NB_UNIT_TESTS], [test $nb_have_check = yes])
])

dnl NB_CHECK_VERBS: only the headers of libibverbs. The plugin opens the library itself at run time.
AC_DEFUN([NB_CHECK_VERBS], [
    AC_ARG_WITH([verbs], [AS_HELP_STRING([--without-verbs], [leave out the InfiniBand/RoCE transport])],
        [], [with_verbs=auto])
    nb_have_verbs=no
    nb_verbs_summary="no (switched off)"
    AS_IF([test "x$with_verbs" != xno], [
        AC_CHECK_HEADER([infiniband/verbs.h], [nb_have_verbs=yes; nb_verbs_summary=yes],
            [nb_verbs_summary="no (infiniband/verbs.h not found)"])
        AS_IF([test "x$with_verbs" = xyes && test $nb_have_verbs = no],
            [AC_MSG_ERROR([--with-verbs was given, but infiniband/verbs.h was not found])])
    ])
    AS_IF([test $nb_have_verbs = yes], [AC_DEFINE([NB_HAVE_VERBS], [1], [libibverbs headers are there])])
    AM_CONDITIONAL([NB_VERBS], [test $nb_have_verbs = yes])
])

dnl NB_CHECK_CUDA: nvcc, which compiles the kernels. The build links no library of CUDA.
AC_DEFUN([NB_CHECK_CUDA], [
    AC_ARG_WITH([cuda], [AS_HELP_STRING([--with-cuda=DIR], [CUDA toolkit with bin/nvcc (default: look for it)])],
        [], [with_cuda=auto])
    AC_ARG_VAR([NVCC], [CUDA compiler])
    nb_cuda_summary="no (switched off)"
    AS_IF([test "x$with_cuda" != xno], [
        nb_cuda_path=${CUDA_HOME:+$CUDA_HOME/bin$PATH_SEPARATOR}$PATH$PATH_SEPARATOR/usr/local/cuda/bin
        AS_CASE([$with_cuda], [auto|yes], [], [nb_cuda_path=$with_cuda/bin])
        AC_PATH_PROG([NVCC], [nvcc], [], [$nb_cuda_path])
        # Older compilers do not know all generations of the kernels.
        AS_IF([test -n "$NVCC"], [
            AS_IF(["$NVCC" --list-gpu-arch 2>/dev/null | grep compute_120 >/dev/null], [], [
                AS_IF([test "x$with_cuda" != xauto],
                    [AC_MSG_ERROR([--with-cuda was given, but $NVCC is too old: 12.8 or later is needed])])
                nb_cuda_old=" or too old"
                NVCC=
            ])
        ])
        AS_IF([test -n "$NVCC"], [
            nb_cuda_version=`"$NVCC" --version | sed -n 's/.*release \([[0-9]]*\)[[.]]\([[0-9]]*\).*/\1 * 1000 + \2 * 10/p'`
            AC_DEFINE_UNQUOTED([NB_NVCC_VERSION], [(${nb_cuda_version:-0})], [CUDA that compiles the kernels, as cuDriverGetVersion counts])
            nb_cuda_summary="yes ($NVCC)"], [
            nb_cuda_summary="no (nvcc not found$nb_cuda_old)"
            AS_IF([test "x$with_cuda" != xauto],
                [AC_MSG_ERROR([--with-cuda was given, but nvcc was not found])])
        ])
    ], [NVCC=])
    AM_CONDITIONAL([NB_CUDA], [test -n "$NVCC"])
])

dnl NB_CHECK_QEMU: a virtual machine lets the verbs transport be tested on software RDMA devices.
AC_DEFUN([NB_CHECK_QEMU], [
    AC_ARG_VAR([QEMU], [system emulator for this architecture])
    AC_PATH_PROGS([QEMU], [qemu-system-$host_cpu], [])
    AS_IF([test -n "$QEMU"], [nb_qemu_summary="yes ($QEMU)"],
        [nb_qemu_summary="no (qemu-system-$host_cpu not found)"])
    AM_CONDITIONAL([NB_QEMU], [test -n "$QEMU"])
])
