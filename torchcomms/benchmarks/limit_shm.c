/* The limit of shm: its own core driven from C, and plain memcpy, by `ranks` processes at once. Prints JSON.
 *
 * Compile with fold.c, meeting.c and operations.c of the core; run as `limit_shm RANKS`. Microseconds.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "group.h"

enum { ROUNDS = 9, LONGEST = 64 << 20 };
static const size_t SIZES[] = {8, 4 << 10, 256 << 10, 4 << 20, LONGEST};
static const int REPEATS[] = {20000, 10000, 1000, 60, 6};
static struct group group;

static void run(uint32_t kind, void *data, size_t bytes) {
    group.op.kind = kind, group.op.root = 0, group.op.factor = 0;
    group.op.tensor = (struct block){data, bytes};
    operation_begin(&group, F32, kind == ALL_REDUCE ? SUM : REDUCTIONS);
    while (operation_step(&group, (struct patience){50000, 10000000}) == PENDING) continue;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median of several rounds, of the mean of one; `kind` TELL stands for memcpy. */
static double measure(uint32_t kind, unsigned char *data, unsigned char *other, size_t bytes, int repeats) {
    double times[ROUNDS];
    for (int round = 0; round < ROUNDS; round++) {
        run(BARRIER, NULL, 0);
        uint64_t start = now_ns();
        for (int i = 0; i < repeats; i++) kind == TELL ? (void)memcpy(other, data, bytes) : run(kind, data, bytes);
        times[round] = (double)(now_ns() - start) / repeats / 1e3;
    }
    qsort(times, ROUNDS, sizeof *times, ascending);
    return times[ROUNDS / 2];
}

static void report(const char *name, uint32_t kind, unsigned char *data, unsigned char *other) {
    printf("\"%s\": {", name);
    for (int i = 0; i < 5; i++) {
        double time = measure(kind, data, other, SIZES[i], REPEATS[i]);
        printf("%s\"%zu\": %.3f", i ? ", " : "", SIZES[i], time);
    }
    printf("}");
}

int main(int count, char **arguments) {
    uint32_t ranks = count > 1 ? (uint32_t)atoi(arguments[1]) : 2, rank = 0;
    struct layout layout = {ranks, 2 << 20, 512 << 10, 16 << 10, LONGEST, LONGEST + ALIGNED};
    size_t bytes = layout_bytes(&layout);
    unsigned char *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    for (uint32_t child = 1; child < ranks && !rank; child++) rank = fork() ? 0 : child;
    cpu_set_t mine;
    CPU_ZERO(&mine);
    CPU_SET(rank % (unsigned)sysconf(_SC_NPROCESSORS_ONLN), &mine);
    sched_setaffinity(0, sizeof mine, &mine);
    if (base == MAP_FAILED || !group_attach(&group, base, rank, &layout)) return 1;
    if (rank && !freopen("/dev/null", "w", stdout)) return 1;
    unsigned char *data = aligned_alloc(ALIGNED, LONGEST), *other = aligned_alloc(ALIGNED, LONGEST);
    memset(data, 0, LONGEST);
    memset(other, 0, LONGEST);
    memset(group.heaps + rank * layout.heap, 0, LONGEST);
    printf("{");
    report("memcpy", TELL, data, other);
    printf(", ");
    report("all_reduce", ALL_REDUCE, data, other);
    printf(", ");
    report("all_reduce of tensors in the segment", ALL_REDUCE, group.heaps + rank * layout.heap, other);
    printf(", ");
    report("broadcast", BROADCAST, data, other);
    printf("}\n");
    while (!rank && wait(NULL) > 0) continue;
    return 0;
}
