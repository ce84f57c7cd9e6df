/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The program that bench.sh compiles with mpicc and runs under Open MPI: reduce-scatter, all-gather and
 * all-reduce of the same bytes as nibble's. The build leaves it out.
 *
 *   mpi_coll BYTES REPETITIONS WARMUP OP:TYPE...
 *
 * BYTES is the whole vector. MPI lacks bfloat16: 16-bit integers take its place, the same bytes with cheaper
 * sums. Prints for every OP:TYPE and repetition "OP TYPE BYTES seconds cpu". cpu is the number of processors
 * that all ranks kept busy.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static double cpu_seconds(void)
{
    struct rusage r;

    getrusage(RUSAGE_SELF, &r);
    return (double)(r.ru_utime.tv_sec + r.ru_stime.tv_sec) +
           1e-6 * (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec);
}

static int run_once(const char *op, MPI_Datatype type, int each, int ranks, char *send, char *recv)
{
    if (strcmp(op, "all_gather") == 0)
        return MPI_Allgather(send, each, type, recv, each, type, MPI_COMM_WORLD);
    if (strcmp(op, "all_reduce") == 0)
        return MPI_Allreduce(send, recv, each * ranks, type, MPI_SUM, MPI_COMM_WORLD);
    /* With counts instead of equal blocks: Open MPI decides better for this function on long vectors. */
    int *counts = malloc((size_t)ranks * sizeof(*counts)), rc;

    if (!counts)
        abort();
    for (int i = 0; i < ranks; i++)
        counts[i] = each;
    rc = MPI_Reduce_scatter(send, recv, counts, type, MPI_SUM, MPI_COMM_WORLD);
    free(counts);
    return rc;
}

int main(int argc, char **argv)
{
    int rank, ranks, status = 0;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc < 5) {
        fprintf(stderr, "usage: mpi_coll BYTES REPETITIONS WARMUP OP:TYPE...\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
        return 2;
    }
    const size_t bytes = strtoull(argv[1], NULL, 10);
    const int reps = atoi(argv[2]), warmup = atoi(argv[3]);
    char *send = malloc(bytes), *recv = malloc(bytes);

    if (!send || !recv)
        MPI_Abort(MPI_COMM_WORLD, 1);
    memset(recv, 0, bytes);
    for (int a = 4; a < argc; a++) {
        char op[32], name[32];

        if (sscanf(argv[a], "%31[^:]:%31s", op, name) != 2)
            MPI_Abort(MPI_COMM_WORLD, 2);
        const int wide = strcmp(name, "float32") == 0;
        const int each = (int)(bytes / (wide ? 4 : 2) / (size_t)ranks);

        for (size_t i = 0; i < bytes / 4; i++)
            ((float *)(void *)send)[i] = (float)(i % 1000) * 1e-3f + (float)rank;
        for (int i = -warmup; i < reps; i++) {
            double mine[2], slowest, cpu;

            MPI_Barrier(MPI_COMM_WORLD);
            mine[1] = cpu_seconds();
            mine[0] = MPI_Wtime();
            if (run_once(op, wide ? MPI_FLOAT : MPI_UINT16_T, each, ranks, send, recv) != MPI_SUCCESS)
                status = 1;
            mine[0] = MPI_Wtime() - mine[0];
            mine[1] = cpu_seconds() - mine[1];
            MPI_Reduce(&mine[0], &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
            MPI_Reduce(&mine[1], &cpu, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
            if (rank == 0 && i >= 0)
                printf("%s %s %zu %.9f %.3f\n", op, name, bytes, slowest, cpu / slowest);
        }
    }
    free(send);
    free(recv);
    MPI_Finalize();
    return status;
}
