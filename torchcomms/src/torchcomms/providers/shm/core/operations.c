/* The collectives as state machines over rounds: what is handed over in each, and what is made of it.
 *
 * A reduction longer than `small` is shared out: each rank gets its share of all tensors, reduces it into the results,
 * which all ranks see, and when all shares of a piece are there everybody copies the piece into its tensor. So a tensor
 * is untouched until its piece is certain. Tensors in a heap are read where they are; if all are, they are also written
 * there.
 */
#include <stdlib.h>
#include <string.h>

#include "group.h"

enum { DIRECT = 32 << 10 }; /* bytes reduced at once in place: they stay in the cache until they are copied */

static size_t least(size_t a, size_t b) { return a < b ? a : b; }
static size_t ceiling(size_t a, size_t b) { return (a + b - 1) / b; }
static size_t round_up(size_t a, size_t to) { return ceiling(a, to) * to; }
static size_t table_bytes(const struct layout *layout) { return round_up(layout->size * sizeof(uint64_t), LINE); }
static size_t slot_bytes(const struct layout *layout) { return table_bytes(layout) + layout->slot; }

static void copy(unsigned char *to, const unsigned char *from, size_t bytes) {
    if (bytes && to != from) memcpy(to, from, bytes);
}

/* Of `bytes`, what lies within `length` from `offset` on. */
static size_t within(size_t bytes, size_t offset, size_t length) {
    return offset < bytes ? least(length, bytes - offset) : 0;
}

size_t layout_bytes(const struct layout *l) {
    size_t meeting = round_up(l->size * (2 * sizeof(struct cell) + sizeof(struct story)), ALIGNED);
    size_t slots = round_up(2 * l->size * slot_bytes(l), ALIGNED);
    return meeting + slots + round_up(l->piece, ALIGNED) + l->size * l->heap;
}

bool group_attach(struct group *g, unsigned char *base, uint32_t rank, const struct layout *l) {
    memset(g, 0, sizeof *g);
    g->rank = rank;
    g->layout = *l;
    g->region = l->slot / l->size / LINE * LINE;
    g->cells = (struct cell(*)[2])base;
    g->stories = (struct story *)(g->cells + l->size);
    g->slots = base + round_up(l->size * (2 * sizeof(struct cell) + sizeof(struct story)), ALIGNED);
    g->results = g->slots + round_up(2 * l->size * slot_bytes(l), ALIGNED);
    g->heaps = g->results + round_up(l->piece, ALIGNED);
    g->ins = calloc(l->size, sizeof *g->ins);
    g->outs = calloc(l->size, sizeof *g->outs);
    g->places = calloc(l->size, sizeof *g->places);
    g->parts = calloc(l->size, sizeof *g->parts);
    g->tales = calloc(l->size, sizeof *g->tales);
    g->round = atomic_load(&g->cells[rank][0].flag);
    return g->ins && g->outs && g->places && g->parts && g->tales;
}

void group_detach(struct group *g) {
    operation_end(g);
    free(g->ins);
    free(g->outs);
    free(g->places);
    free((void *)g->parts);
    free(g->tales);
    memset(g, 0, sizeof *g);
}

static uint64_t mix(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 29;
}

/* Whether the tensor has the same length on all ranks. */
static bool counted(const struct operation *op) {
    return op->kind == BROADCAST || op->kind == ALL_REDUCE || op->kind == REDUCE || op->kind == SCAN;
}

static uint64_t fingerprint(const struct group *g, uint32_t dtype, uint32_t reduction) {
    const struct operation *op = &g->op;
    uint64_t factor, hash = mix(mix(mix(op->kind + 1, op->root), dtype), reduction);
    memcpy(&factor, &op->factor, sizeof factor);
    hash = mix(hash, factor);
    const struct block *lengths = op->kind == ALL_GATHER ? g->outs : op->kind == REDUCE_SCATTER ? g->ins : NULL;
    for (uint32_t rank = 0; lengths && rank < g->layout.size; rank++) hash = mix(hash, lengths[rank].bytes);
    return counted(op) ? mix(hash, op->tensor.bytes) : hash;
}

/* Where the tensor lies in this rank's heap, if the others may read it there until the operation is over. */
static uint64_t place_of(const struct group *g) {
    const struct operation *op = &g->op;
    const unsigned char *heap = g->heaps + g->rank * g->layout.heap, *data = op->tensor.data;
    bool shared = op->kind == ALL_GATHER || (op->kind == BROADCAST && op->root == g->rank);
    shared |= (op->kind == ALL_REDUCE || op->kind == REDUCE) && op->tensor.bytes > g->layout.small;
    bool inside = data >= heap && data + op->tensor.bytes <= heap + g->layout.heap;
    return shared && inside ? (uint64_t)(data - heap) : NOWHERE;
}

static size_t share_bytes(const struct group *g, size_t piece) {
    return round_up(ceiling(piece, g->layout.size), LINE);
}
static size_t phases(const struct group *g, size_t piece) {
    return ceiling(least(share_bytes(g, piece), piece), g->region) + 1;
}
static size_t at_least_one(size_t rounds) { return rounds ? rounds : 1; }

static size_t longest(const struct group *g, const struct block *blocks) {
    size_t bytes = 0;
    for (uint32_t rank = 0; rank < g->layout.size; rank++)
        if (blocks[rank].bytes > bytes) bytes = blocks[rank].bytes;
    return bytes;
}

static uint64_t rounds_needed(const struct group *g) {
    const struct operation *op = &g->op;
    size_t bytes = op->tensor.bytes, piece = g->layout.piece;
    switch (op->kind) {
    case ALL_REDUCE:
    case REDUCE:
        if (bytes <= g->layout.small) return 1;
        return bytes / piece * phases(g, piece) + (bytes % piece ? phases(g, bytes % piece) : 0);
    case BROADCAST:
    case ALL_GATHER:
        if (g->places[g->rank] != NOWHERE) return 2; /* the second tells that all have read */
        /* fall through */
    case GATHER:
    case SCAN: return at_least_one(ceiling(bytes, g->layout.chunk));
    case SCATTER: return at_least_one(op->root == g->rank ? ceiling(longest(g, g->ins), g->region) : 0);
    case ALL_TO_ALL:
    case REDUCE_SCATTER: return at_least_one(ceiling(longest(g, g->ins), g->region));
    case TELL: return 2; /* the second tells that all have read */
    default: return 1;
    }
}

bool operation_begin(struct group *g, uint32_t dtype, uint32_t reduction) {
    struct operation *op = &g->op;
    op->item = fold_item(dtype);
    op->fold = fold_find(dtype, reduction);
    op->call = fingerprint(g, dtype, reduction);
    op->round = op->phase = op->start = op->odd_bytes = 0;
    op->published = op->direct = false;
    op->in_line = counted(op) && op->tensor.bytes <= INLINE;
    op->odd = g->layout.size;
    op->staging = NULL;
    bool reduces = op->kind == ALL_REDUCE || op->kind == REDUCE || op->kind == SCAN || op->kind == REDUCE_SCATTER;
    if (reduces && !op->fold) return false;
    bool staged = op->kind == SCAN && op->tensor.bytes > g->layout.chunk;
    if (staged && !(op->staging = malloc(op->tensor.bytes))) return false;
    g->places[g->rank] = place_of(g);
    op->rounds = rounds_needed(g);
    g->calls += op->kind != TELL;
    return g->active = true;
}

void operation_end(struct group *g) {
    free(g->op.staging);
    g->op.staging = NULL;
    g->active = false;
}

static unsigned char *slot_of(const struct group *g, uint32_t rank) {
    return g->slots + (2 * (size_t)rank + (g->round & 1)) * slot_bytes(&g->layout);
}
static uint64_t *table_of(const struct group *g, uint32_t rank) { return (uint64_t *)slot_of(g, rank); }
static unsigned char *payload_of(const struct group *g, uint32_t rank) {
    return g->op.in_line ? cell_of(g, rank)->payload : slot_of(g, rank) + table_bytes(&g->layout);
}

/* What rank `rank` has at `offset` of its tensor, be it in its slot at `handed`, in its heap or here. */
static const unsigned char *part_of(const struct group *g, uint32_t rank, size_t offset, size_t handed) {
    if (rank == g->rank) return g->op.tensor.data + offset;
    if (g->places[rank] != NOWHERE) return g->heaps + rank * g->layout.heap + g->places[rank] + offset;
    return payload_of(g, rank) + handed;
}

static void hand_over(struct group *g) {
    struct operation *op = &g->op;
    unsigned char *payload = payload_of(g, g->rank);
    size_t bytes = op->tensor.bytes, offset = op->round * g->layout.chunk, size = g->layout.size;
    bool root = op->root == g->rank, at_home = g->places[g->rank] != NOWHERE;
    switch (op->kind) {
    case GATHER:
        if (!op->round) table_of(g, g->rank)[op->root] = bytes;
        /* fall through */
    case BROADCAST:
    case ALL_GATHER:
    case SCAN:
        if ((op->kind == BROADCAST && !root) || (op->kind == GATHER && root) || at_home) return;
        copy(payload, op->tensor.data + offset, within(bytes, offset, g->layout.chunk));
        return;
    case SCATTER:
    case ALL_TO_ALL:
    case REDUCE_SCATTER:
        if (op->kind == SCATTER && !root) return;
        for (uint32_t rank = 0; rank < size; rank++) {
            if (!op->round) table_of(g, g->rank)[rank] = g->ins[rank].bytes;
            size_t from = op->round * g->region, length = within(g->ins[rank].bytes, from, g->region);
            if (rank != g->rank) copy(payload + rank * g->region, g->ins[rank].data + from, length);
        }
        return;
    case ALL_REDUCE:
    case REDUCE:
        if (at_home) return;
        if (bytes <= g->layout.small) {
            copy(payload, op->tensor.data, bytes);
            return;
        }
        size_t piece = least(g->layout.piece, bytes - op->start), share = share_bytes(g, piece);
        size_t from = op->phase * g->region;
        for (uint32_t rank = 0; rank < size && from < share; rank++) {
            size_t length = within(within(piece, rank * share, share), from, g->region);
            if (rank != g->rank && length)
                copy(payload + rank * g->region, op->tensor.data + op->start + rank * share + from, length);
        }
        return;
    default: return;
    }
}

static void fold_into(struct group *g, unsigned char *out, uint32_t ranks, size_t offset, size_t handed, size_t bytes) {
    for (uint32_t rank = 0; rank < ranks; rank++) g->parts[rank] = part_of(g, rank, offset, handed);
    g->op.fold(out, g->parts, ranks, bytes / g->op.item, g->op.factor);
}

/* All tensors are in heaps: reduce this rank's share of them and write it to all. */
static void reduce_directly(struct group *g) {
    struct operation *op = &g->op;
    size_t share = share_bytes(g, op->tensor.bytes), mine = g->rank * share;
    size_t bytes = within(op->tensor.bytes, mine, share);
    for (size_t from = mine; from < mine + bytes; from += DIRECT) {
        size_t length = least(DIRECT, mine + bytes - from);
        uint32_t first = op->kind == REDUCE ? op->root : g->rank;
        unsigned char *out = (unsigned char *)part_of(g, first, from, 0);
        fold_into(g, out, g->layout.size, from, 0, length);
        for (uint32_t rank = 0; rank < g->layout.size && op->kind == ALL_REDUCE; rank++)
            if (rank != g->rank) copy((unsigned char *)part_of(g, rank, from, 0), out, length);
    }
}

static void reduce_share(struct group *g) {
    struct operation *op = &g->op;
    bool wanted = op->kind == ALL_REDUCE || op->root == g->rank;
    if (op->direct) {
        if (!op->round) reduce_directly(g);
    } else if (op->tensor.bytes <= g->layout.small) {
        if (wanted) fold_into(g, op->tensor.data, g->layout.size, 0, 0, op->tensor.bytes);
    } else {
        size_t piece = least(g->layout.piece, op->tensor.bytes - op->start), share = share_bytes(g, piece);
        size_t from = op->phase * g->region, mine = g->rank * share;
        size_t length = within(within(piece, mine, share), from, g->region);
        if (++op->phase < phases(g, piece)) {
            unsigned char *out = g->results + mine + from;
            fold_into(g, out, g->layout.size, op->start + mine + from, g->rank * g->region, length);
        } else {
            if (wanted) copy(op->tensor.data + op->start, g->results, piece);
            op->start += piece;
            op->phase = 0;
        }
    }
}

static void scan_chunk(struct group *g) {
    struct operation *op = &g->op;
    size_t offset = op->round * g->layout.chunk, length = within(op->tensor.bytes, offset, g->layout.chunk);
    unsigned char *out = op->staging ? op->staging : op->tensor.data;
    fold_into(g, out + offset, g->rank + 1, offset, 0, length);
    if (op->staging && op->round + 1 == op->rounds) copy(op->tensor.data, op->staging, op->tensor.bytes);
}

/* Into `to`, what `rank` hands over to this rank; its length is told in the first round, where ranks need not agree. */
static void receive(struct group *g, uint32_t rank, struct block *to, bool told, size_t handed, size_t step) {
    struct operation *op = &g->op;
    size_t offset = op->round * step, length = within(to->bytes, offset, step);
    if (told && !op->round && table_of(g, rank)[g->rank] != to->bytes) {
        op->odd = rank;
        op->odd_bytes = table_of(g, rank)[g->rank];
        to->bytes = 0;
    } else if (g->places[rank] != NOWHERE) {
        if (!op->round) copy(to->data, part_of(g, rank, 0, 0), to->bytes);
    } else {
        copy(to->data + offset, payload_of(g, rank) + handed, length);
    }
}

static void receive_all(struct group *g, bool told, size_t handed, size_t step) {
    /* Beginning after this rank, so that the others are not all reading from one. */
    for (uint32_t turn = 1; turn < g->layout.size; turn++) {
        uint32_t rank = (g->rank + turn) % g->layout.size;
        receive(g, rank, &g->outs[rank], told, handed, step);
    }
}

static void take(struct group *g) {
    struct operation *op = &g->op;
    bool root = op->root == g->rank, last = op->round + 1 == op->rounds;
    struct block *mine = &g->outs[g->rank];
    switch (op->kind) {
    case ALL_REDUCE:
    case REDUCE: reduce_share(g); return;
    case SCAN: scan_chunk(g); return;
    case BROADCAST:
        if (!root) receive(g, op->root, &op->tensor, false, 0, g->layout.chunk);
        return;
    case ALL_GATHER:
    case GATHER:
        if (op->kind == GATHER && !root) return;
        receive_all(g, op->kind == GATHER, 0, g->layout.chunk);
        /* Nobody waits for this rank after the last flag. */
        if (last) copy(mine->data, op->tensor.data, mine->bytes);
        return;
    case ALL_TO_ALL:
        receive_all(g, true, g->rank * g->region, g->region);
        if (last) copy(mine->data, g->ins[g->rank].data, mine->bytes);
        return;
    case SCATTER:
        if (!root) receive(g, op->root, &op->tensor, true, g->rank * g->region, g->region);
        else if (last) copy(op->tensor.data, g->ins[g->rank].data, op->tensor.bytes);
        return;
    case REDUCE_SCATTER: {
        size_t offset = op->round * g->region, length = within(op->tensor.bytes, offset, g->region);
        for (uint32_t rank = 0; rank < g->layout.size; rank++)
            g->parts[rank] = rank == g->rank ? g->ins[rank].data + offset : payload_of(g, rank) + g->rank * g->region;
        op->fold(op->tensor.data + offset, g->parts, g->layout.size, length / op->item, op->factor);
        return;
    }
    case TELL:
        for (uint32_t rank = 0; rank < g->layout.size && !op->round; rank++) story_hear(g, rank, &g->tales[rank]);
        return;
    default: return;
    }
}

/* The first round: whether all ranks called the same; how many rounds it takes; where the tensors are. */
static bool agree(struct group *g) {
    struct operation *op = &g->op;
    bool same = true, everywhere = true, rooted = op->kind == BROADCAST || op->kind == SCATTER;
    for (uint32_t rank = 0; rank < g->layout.size; rank++) {
        const struct header *theirs = &cell_of(g, rank)->header;
        same &= theirs->call == op->call;
        everywhere &= theirs->place != NOWHERE;
        g->places[rank] = theirs->place;
        if (rooted ? rank == op->root : theirs->need > op->rounds) op->rounds = theirs->need;
    }
    op->direct = everywhere && (op->kind == ALL_REDUCE || op->kind == REDUCE);
    if (op->direct) op->rounds = 2;
    return same || op->kind == TELL;
}

static void publish(struct group *g) {
    struct operation *op = &g->op;
    g->round++;
    if (!op->round) cell_of(g, g->rank)->header = (struct header){op->call, op->rounds, g->places[g->rank]};
    hand_over(g);
    round_publish(g);
    op->published = true;
    op->slept = false;
}

enum status operation_step(struct group *g, struct patience patience) {
    struct operation *op = &g->op;
    uint64_t until = patience.park_ns ? now_ns() + patience.park_ns : 0;
    for (;;) {
        if (!op->published) publish(g);
        if (!round_wait(g, op->slept ? 0 : patience.spin_ns, until)) {
            op->slept = until != 0;
            return PENDING;
        }
        if (!op->round && !agree(g)) {
            operation_end(g);
            return MISMATCH;
        }
        take(g);
        op->published = false;
        if (++op->round == op->rounds) {
            operation_end(g);
            return op->odd < g->layout.size ? LENGTHS : DONE;
        }
    }
}
