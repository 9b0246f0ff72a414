/* What this machine can do, with no Python: the core's own collectives, and copying memory on all cores at once.
 *
 *   limit copy|bare|wire|OPERATION BYTES DTYPE RANKS OWN INNER SAMPLES SLOT CHUNK SMALL PIECE HEAP SPIN_NS
 *
 * Forks RANKS pinned processes, and prints for each sample of INNER calls the microseconds of a call on the slowest
 * rank. DTYPE is a number of fold.h. OWN puts the tensors into the segment. "bare" is an exchange of one line
 * of cache and the sum of it: what an all_reduce of that size costs if nothing is checked. "wire" is BYTES to and from each of two ranks
 * at once over TCP on loopback, both ends looking again and again: what no library over sockets can beat.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "group.h"

enum { WARM = 3, BEFORE = 256, PARK_NS = 2000000 };

static const char *const KINDS[] = {"barrier", "broadcast", "all_reduce", "reduce", "scan", "all_gather", "gather",
                                    "scatter", "all_to_all", "reduce_scatter"};

struct test {
    const char *name;
    size_t bytes;
    uint32_t dtype, ranks;
    int own, inner, samples, wire;
    struct group group;
    unsigned char *tensor, *output;
    struct patience patience;
};

static void *memory(size_t bytes, int flags) {
    void *found = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
    if (found == MAP_FAILED) exit(2);
    return found;
}

static void cut(struct block *blocks, unsigned char *data, size_t bytes, uint32_t ranks) {
    for (uint32_t rank = 0; rank < ranks; rank++) blocks[rank] = (struct block){data + rank * (bytes / ranks), bytes / ranks};
}

static void collective(struct test *test) {
    struct group *g = &test->group;
    uint32_t kind = 0;
    while (strcmp(KINDS[kind], test->name)) kind++;
    g->op.kind = kind;
    g->op.root = 0;
    g->op.factor = 1;
    cut(g->ins, test->tensor, test->bytes, test->ranks);
    cut(g->outs, test->output, test->bytes, test->ranks);
    g->op.tensor = (struct block){test->tensor, kind == BARRIER ? 0 : test->bytes};
    if (kind == ALL_GATHER) g->op.tensor = g->ins[g->rank];
    if (kind == REDUCE_SCATTER) g->op.tensor = g->outs[g->rank];
    if (!operation_begin(g, test->dtype, SUM)) exit(3);
    enum status status;
    while ((status = operation_step(g, test->patience)) == PENDING) continue;
    if (status != DONE) exit(4);
}

static void bare(struct test *test) {
    struct group *g = &test->group;
    const void *parts[64];
    g->round++;
    memcpy(cell_of(g, g->rank)->payload, test->tensor, test->bytes);
    round_publish(g);
    while (!round_wait(g, test->patience.spin_ns, now_ns() + PARK_NS)) continue;
    for (uint32_t rank = 0; rank < test->ranks; rank++) parts[rank] = cell_of(g, rank)->payload;
    fold_find(test->dtype, SUM)(test->tensor, parts, test->ranks, test->bytes / fold_item(test->dtype), 1);
}

/* Two connected sockets, of which each process keeps one. */
static void connect_wire(int *ends) {
    struct sockaddr_in place = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof place;
    int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    bool bad = bind(listener, (struct sockaddr *)&place, length) || listen(listener, 1);
    bad |= getsockname(listener, (struct sockaddr *)&place, &length) != 0;
    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    bad |= connect(ends[0], (struct sockaddr *)&place, length) != 0;
    ends[1] = accept(listener, NULL, NULL);
    if (bad || ends[1] < 0) exit(6);
    for (int end = 0; end < 2; end++) setsockopt(ends[end], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    close(listener);
}

static void exchange(struct test *test) {
    size_t sent = 0, received = 0, bytes = test->bytes;
    while (sent < bytes || received < bytes) {
        ssize_t out = sent < bytes ? send(test->wire, test->tensor + sent, bytes - sent, MSG_DONTWAIT | MSG_NOSIGNAL) : 0;
        if (out > 0) sent += (size_t)out;
        ssize_t in = received < bytes ? recv(test->wire, test->output + received, bytes - received, MSG_DONTWAIT) : 0;
        if (in > 0) received += (size_t)in;
    }
}

static void once(struct test *test) {
    if (!strcmp(test->name, "wire")) exchange(test);
    else if (!strcmp(test->name, "copy")) memcpy(test->output, test->tensor, test->bytes);
    else if (!strcmp(test->name, "bare")) bare(test);
    else collective(test);
    __asm__ volatile("" ::: "memory");
}

static void measure(struct test *test, double *times) {
    int copying = !strcmp(test->name, "copy");
    const char *name = test->name;
    for (int call = 0; call < WARM; call++) once(test);
    test->name = "barrier"; /* the ranks begin together */
    for (int call = 0; call < BEFORE; call++) collective(test);
    test->name = name;
    for (int sample = 0; sample < test->samples; sample++) {
        if (copying) {
            test->name = "barrier";
            collective(test);
            test->name = name;
        }
        uint64_t started = now_ns();
        for (int call = 0; call < test->inner; call++) once(test);
        times[sample] = (double)(now_ns() - started) / test->inner / 1e3;
    }
}

static void rank_main(struct test *test, unsigned char *base, const struct layout *layout, uint32_t rank, double *times) {
    cpu_set_t core;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    CPU_ZERO(&core);
    CPU_SET(rank % (uint32_t)cores, &core);
    if (test->ranks <= cores) sched_setaffinity(0, sizeof core, &core);
    if (!group_attach(&test->group, base, rank, layout)) exit(5);
    size_t bytes = test->bytes + 4096;
    test->tensor = test->own ? test->group.heaps + rank * layout->heap : memory(bytes, MAP_PRIVATE);
    test->output = memory(bytes, MAP_PRIVATE);
    memset(test->tensor, 0, bytes);
    memset(test->output, 0, bytes);
    measure(test, times + rank * test->samples);
    exit(0);
}

int main(int argc, char **argv) {
    if (argc != 14) return 1;
    struct test test = {.name = argv[1], .bytes = strtoull(argv[2], NULL, 10), .dtype = (uint32_t)atoi(argv[3]),
                        .ranks = (uint32_t)atoi(argv[4]), .own = atoi(argv[5]), .inner = atoi(argv[6]), .samples = atoi(argv[7])};
    struct layout layout = {.size = test.ranks, .slot = strtoull(argv[8], NULL, 10), .chunk = strtoull(argv[9], NULL, 10),
                            .small = strtoull(argv[10], NULL, 10), .piece = strtoull(argv[11], NULL, 10), .heap = strtoull(argv[12], NULL, 10)};
    test.patience = (struct patience){strtoull(argv[13], NULL, 10), PARK_NS};
    int ends[2] = {-1, -1};
    if (!strcmp(test.name, "wire")) connect_wire(ends);
    unsigned char *base = memory(layout_bytes(&layout), MAP_SHARED);
    double *times = memory(test.ranks * (size_t)test.samples * sizeof *times, MAP_SHARED);
    for (uint32_t rank = 0; rank < test.ranks; rank++)
        if (!fork()) {
            test.wire = ends[rank & 1];
            rank_main(&test, base, &layout, rank, times);
        }
    int bad = 0, status;
    while (wait(&status) > 0) bad |= status;
    for (int sample = 0; sample < test.samples && !bad; sample++) {
        double slowest = 0;
        for (uint32_t rank = 0; rank < test.ranks; rank++)
            if (times[rank * test.samples + sample] > slowest) slowest = times[rank * test.samples + sample];
        printf("%.6g\n", slowest);
    }
    return bad != 0;
}
