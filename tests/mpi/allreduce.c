/* Sums of vectors of several lengths over all ranks, each checked by each. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    int rank, size, wrong = 0, wrongs;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int length = 1; length <= 1 << 16; length *= 16) {
        long *own = malloc(length * sizeof *own), *sum = malloc(length * sizeof *sum);
        for (int i = 0; i < length; i++) own[i] = (long)(rank + 1) * (i + 1);
        MPI_Allreduce(own, sum, length, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
        for (int i = 0; i < length; i++) wrong += sum[i] != (long)size * (size + 1) / 2 * (i + 1);
        free(own);
        free(sum);
    }
    MPI_Allreduce(&wrong, &wrongs, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0) printf("allreduce %d ranks %s\n", size, wrongs ? "WRONG" : "right");
    MPI_Finalize();
    return wrongs != 0;
}
