/* A token goes around all ranks, so often as told, and each adds one to it. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    int rank, size, rounds = argc > 1 ? atoi(argv[1]) : 10;
    long token = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int next = (rank + 1) % size, before = (rank + size - 1) % size;
    for (int i = 0; i < rounds; i++) {
        if (rank == 0) {
            /* Alone it sends to itself. */
            long sent = token + 1;
            MPI_Sendrecv(&sent, 1, MPI_LONG, next, 0, &token, 1, MPI_LONG, before, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            MPI_Recv(&token, 1, MPI_LONG, before, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            token++;
            MPI_Send(&token, 1, MPI_LONG, next, 0, MPI_COMM_WORLD);
        }
    }
    int wrong = rank == 0 && token != (long)rounds * size;
    if (rank == 0) printf("ring %d ranks token %ld %s\n", size, token, wrong ? "WRONG" : "right");
    MPI_Finalize();
    return wrong;
}
