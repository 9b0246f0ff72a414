/* A group of ranks over one segment: its layout, its rounds, its operations. Knows no Python.
 *
 * Every collective is a sequence of rounds. In a round each rank writes into its own slot, counts its flag up, waits
 * until all flags have come so far, and reads the others' slots. Each rank has two slots, used in turns: who writes
 * into one has seen all flags of the round before, so everybody is through with what stood there.
 */
#ifndef TORCHCOMMS_GROUP_H
#define TORCHCOMMS_GROUP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fold.h"

enum { STORY = 256, LINE = 64, ALIGNED = 4096, INLINE = 32 }; /* bytes */
#define NOWHERE UINT64_MAX

/* The same on all ranks. Bytes but for `size`. */
struct layout {
    uint32_t size;
    size_t slot;  /* what one rank can hand over in one round */
    size_t chunk; /* what it hands over at once where the others can read meanwhile */
    size_t small; /* up to which every rank reduces everything */
    size_t piece; /* what is reduced before any of it is written back */
    size_t heap;  /* for the tensors of one rank */
};

/* What a rank says with the first flag of an operation. */
struct header {
    uint64_t call;  /* fingerprint: equal on all ranks, or it is a mismatch */
    uint64_t need;  /* rounds that this rank counts on */
    uint64_t place; /* of its tensor in its heap, or NOWHERE */
};

/* What others look at: one line of cache for rounds of even number, one for odd. So a short operation is one line. */
struct cell {
    _Atomic uint32_t flag;    /* the last of these rounds that this rank has published */
    _Atomic uint32_t waiters; /* who sleeps until `flag` changes */
    struct header header;
    unsigned char payload[INLINE];
};

struct story {
    _Atomic uint32_t round; /* in which it was written */
    _Atomic uint32_t length;
    _Atomic uint64_t words[(STORY - 8) / 8];
};

struct tale {
    size_t length;
    unsigned char text[STORY];
};

/* Numbers that Python passes and gets; see call.py. */
enum kind {
    BARRIER, BROADCAST, ALL_REDUCE, REDUCE, SCAN, ALL_GATHER, GATHER, SCATTER, ALL_TO_ALL, REDUCE_SCATTER,
    TELL /* no operation: stories were told, now all ranks read them */
};
enum status { DONE, PENDING, MISMATCH, LENGTHS, BUSY, CLOSED };

struct block {
    unsigned char *data;
    size_t bytes;
};

struct operation {
    uint32_t kind, root;
    uint64_t call;
    size_t item;
    double factor;
    fold_function *fold;
    struct block tensor;    /* this rank's own, read or written or both */
    unsigned char *staging; /* of a scan longer than one round */
    uint64_t round, rounds; /* that are through; that it takes */
    size_t start;           /* of the piece at hand */
    uint64_t phase;         /* rounds of the piece that are through */
    bool published;
    bool slept;   /* in this round: who has slept once does not spin again */
    bool direct;  /* all tensors are in heaps and are reduced there */
    bool in_line; /* the tensor goes into the cell */
    uint32_t odd;           /* a rank whose block has another length, and that length */
    uint64_t odd_bytes;
};

struct group {
    uint32_t rank;
    struct layout layout;
    uint32_t round; /* number of the round at hand; wraps */
    uint32_t seen;  /* ranks below have published it */
    uint64_t calls; /* operations begun */
    bool active;
    size_t region; /* of a slot, for one receiver */
    struct cell (*cells)[2];
    struct story *stories;
    unsigned char *slots, *results, *heaps;
    struct operation op;
    struct block *ins, *outs; /* one for each rank, of the operation at hand */
    uint64_t *places;
    const void **parts;
    struct tale *tales; /* what the ranks told at the last mismatch */
};

struct patience {
    uint64_t spin_ns, park_ns; /* of one wait; of the whole call */
};

size_t layout_bytes(const struct layout *layout);
bool group_attach(struct group *group, unsigned char *base, uint32_t rank, const struct layout *layout);
void group_detach(struct group *group);

/* Sets up `group->op` from the fields kind, root, factor, item, fold, tensor and from ins and outs; needs !active. */
bool operation_begin(struct group *group, uint32_t dtype, uint32_t reduction);
/* Goes on until done, or until patience ends: PENDING. */
enum status operation_step(struct group *group, struct patience patience);
void operation_end(struct group *group);

/* The lower half, in meeting.c. */
struct cell *cell_of(const struct group *group, uint32_t rank); /* for the round at hand */
void round_publish(struct group *group);
bool round_arrived(struct group *group);
bool round_wait(struct group *group, uint64_t spin_ns, uint64_t until);
bool round_reached(const struct group *group, uint32_t rank);
void story_tell(struct group *group, const unsigned char *text, size_t length);
void story_hear(const struct group *group, uint32_t rank, struct tale *tale);
uint64_t now_ns(void);
void count_up(_Atomic uint32_t *counter);
uint32_t count_wait(_Atomic uint32_t *counter, uint32_t seen, uint64_t park_ns);

#endif
