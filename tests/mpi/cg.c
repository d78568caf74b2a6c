/*
 * Conjugate gradients: A x = b with the five-point Laplacian of an N x N grid, rows of the grid in blocks over the ranks.
 *
 *     cg [N [pause_ms [every]]]
 *
 * b is made of an x that is known, so the answer is checked by each rank. Every so many iterations each rank writes its part of the state
 * to PHALANX_CHECKPOINT_DIR, under another name and then in place, and keeps the last two: ranks are at most one checkpoint apart. When
 * PHALANX_ATTEMPT is above 0 all go on from the last checkpoint that everybody has. `pause_ms` after each iteration gives people time
 * to kill something.
 */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int rank, size, n, rows, first;
static const double close_enough = 1e-10;

static double exact(int row, int column) {
    return sin(0.37 * row) + cos(0.11 * column) + 0.001 * row * column / n;
}

/* The rows of neighbours go into the first and the last row of v. */
static void exchange(double *v) {
    int up = rank > 0 ? rank - 1 : MPI_PROC_NULL, down = rank < size - 1 ? rank + 1 : MPI_PROC_NULL;
    MPI_Sendrecv(v + n, n, MPI_DOUBLE, up, 0, v + (size_t)(rows + 1) * n, n, MPI_DOUBLE, down, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Sendrecv(v + (size_t)rows * n, n, MPI_DOUBLE, down, 1, v, n, MPI_DOUBLE, up, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void multiply(double *v, double *out) {
    exchange(v);
    for (int r = 1; r <= rows; r++)
        for (int c = 0; c < n; c++) {
            size_t at = (size_t)r * n + c;
            double left = c > 0 ? v[at - 1] : 0, right = c < n - 1 ? v[at + 1] : 0;
            out[at] = 4 * v[at] - left - right - v[at - n] - v[at + n];
        }
}

static double dot(const double *a, const double *b) {
    double own = 0, sum;
    for (size_t at = n; at < (size_t)(rows + 1) * n; at++) own += a[at] * b[at];
    MPI_Allreduce(&own, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return sum;
}

static void path(char *out, size_t room, const char *dir, int slot, const char *end) {
    snprintf(out, room, "%s/cg-%d-of-%d.%d%s", dir, rank, size, slot, end);
}

/* Iteration, residual and three vectors; 0 when it is not there or not whole. */
static int load(const char *dir, int slot, double *rr, double **vectors) {
    char name[4096];
    size_t cells = (size_t)(rows + 2) * n;
    int iteration = 0;
    path(name, sizeof name, dir, slot, "");
    FILE *file = fopen(name, "rb");
    if (!file) return 0;
    int whole = fread(&iteration, sizeof iteration, 1, file) == 1 && fread(rr, sizeof *rr, 1, file) == 1;
    for (int i = 0; vectors && whole && i < 3; i++) whole = fread(vectors[i], sizeof(double), cells, file) == cells;
    fclose(file);
    return whole ? iteration : 0;
}

static void save(const char *dir, int slot, int iteration, double rr, double **vectors) {
    char name[4096], whole[4096];
    size_t cells = (size_t)(rows + 2) * n;
    path(name, sizeof name, dir, slot, ".part");
    path(whole, sizeof whole, dir, slot, "");
    FILE *file = fopen(name, "wb");
    int good = file && fwrite(&iteration, sizeof iteration, 1, file) == 1 && fwrite(&rr, sizeof rr, 1, file) == 1;
    for (int i = 0; good && i < 3; i++) good = fwrite(vectors[i], sizeof(double), cells, file) == cells;
    if (file && fclose(file)) good = 0;
    if (!good || rename(name, whole)) {
        perror(name);
        MPI_Abort(MPI_COMM_WORLD, 3);
    }
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    n = argc > 1 ? atoi(argv[1]) : 128;
    int pause_ms = argc > 2 ? atoi(argv[2]) : 0, every = argc > 3 ? atoi(argv[3]) : 20;
    const char *dir = getenv("PHALANX_CHECKPOINT_DIR"), *attempt = getenv("PHALANX_ATTEMPT");
    /* Several ranks may make it at once. */
    if (dir) mkdir(dir, 0700);
    first = (int)((long)n * rank / size);
    rows = (int)((long)n * (rank + 1) / size) - first;

    size_t cells = (size_t)(rows + 2) * n;
    double *x = calloc(cells, sizeof *x), *r = calloc(cells, sizeof *r), *p = calloc(cells, sizeof *p);
    double *q = calloc(cells, sizeof *q), *vectors[3] = {x, r, p};
    for (int row = 0; row < rows; row++)
        for (int c = 0; c < n; c++) p[(size_t)(row + 1) * n + c] = exact(first + row, c);
    multiply(p, r);
    memcpy(p, r, cells * sizeof *p);
    double rr = dot(r, r), start = rr;

    int iteration = 0;
    if (dir) mkdir(dir, 0777); /* somebody else may have made it */
    if (dir && attempt && atoi(attempt) > 0) {
        double ignored;
        int here[2] = {load(dir, 0, &ignored, NULL), load(dir, 1, &ignored, NULL)};
        int latest = here[0] > here[1] ? here[0] : here[1], all;
        MPI_Allreduce(&latest, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
        if (all > 0 && load(dir, here[0] == all ? 0 : 1, &rr, vectors) == all) iteration = all;
        MPI_Allreduce(&iteration, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
        if (all != iteration) {
            fprintf(stderr, "cg: rank %d lacks the checkpoint of iteration %d\n", rank, iteration);
            MPI_Abort(MPI_COMM_WORLD, 4);
        }
        if (rank == 0) printf("cg attempt %s resumes at iteration %d\n", attempt, iteration), fflush(stdout);
    }

    while (rr > start * close_enough * close_enough && iteration < 20 * n) {
        multiply(p, q);
        double alpha = rr / dot(p, q);
        for (size_t at = n; at < (size_t)(rows + 1) * n; at++) {
            x[at] += alpha * p[at];
            r[at] -= alpha * q[at];
        }
        double before = rr;
        rr = dot(r, r);
        for (size_t at = n; at < (size_t)(rows + 1) * n; at++) p[at] = r[at] + rr / before * p[at];
        iteration++;
        if (dir && iteration % every == 0) save(dir, iteration / every % 2, iteration, rr, vectors);
        if (pause_ms > 0) usleep(1000 * pause_ms);
        if (rank == 0 && pause_ms > 0 && iteration % every == 0) printf("cg iteration %d\n", iteration), fflush(stdout);
    }

    double own = 0, error;
    for (int row = 0; row < rows; row++)
        for (int c = 0; c < n; c++) own = fmax(own, fabs(x[(size_t)(row + 1) * n + c] - exact(first + row, c)));
    MPI_Allreduce(&own, &error, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    int wrong = !(error < 1e-6);
    if (rank == 0) printf("cg %d ranks %d iterations error %.1e %s\n", size, iteration, error, wrong ? "WRONG" : "right");
    MPI_Finalize();
    return wrong;
}
