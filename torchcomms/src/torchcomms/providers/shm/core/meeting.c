/* How ranks meet: flags, waiting for them, stories for errors, counters of windows. Linux: futexes.
 *
 * A flag is stored and the number of waiters read after it; a waiter counts itself and reads the flag after that. Both
 * are sequentially consistent, so at least one of the two sees the other, and no wake-up is lost.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "group.h"

enum { LOOKS = 32 }; /* between two looks at the clock */

uint64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static inline void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#endif
}

/* Not of the private kind: the other end is another mapping of the memory. */
static void sleep_on(_Atomic uint32_t *word, uint32_t value, uint64_t ns) {
    struct timespec patience = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAIT, value, &patience, NULL, 0);
}

static void wake_all(_Atomic uint32_t *word) {
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

struct cell *cell_of(const struct group *group, uint32_t rank) { return &group->cells[rank][group->round & 1]; }

void round_publish(struct group *group) {
    struct cell *mine = cell_of(group, group->rank);
    atomic_store(&mine->flag, group->round);
    if (atomic_load(&mine->waiters)) wake_all(&mine->flag);
    group->seen = 0;
}

/* Rounds wrap: what counts is the distance. */
static bool behind(uint32_t flag, uint32_t round) { return (int32_t)(flag - round) < 0; }

bool round_reached(const struct group *group, uint32_t rank) {
    return !behind(atomic_load_explicit(&cell_of(group, rank)->flag, memory_order_acquire), group->round);
}

bool round_arrived(struct group *group) {
    while (group->seen < group->layout.size && round_reached(group, group->seen)) group->seen++;
    return group->seen == group->layout.size;
}

static bool spin(struct group *group, uint64_t ns) {
    uint64_t until = ns ? now_ns() + ns : 0;
    do {
        for (int look = 0; look < LOOKS; look++) {
            if (round_arrived(group)) return true;
            relax();
        }
    } while (ns && now_ns() < until);
    return false;
}

bool round_wait(struct group *group, uint64_t spin_ns, uint64_t until) {
    if (round_arrived(group) || spin(group, spin_ns)) return true;
    for (uint64_t now = now_ns(); now < until && !round_arrived(group); now = now_ns()) {
        struct cell *late = cell_of(group, group->seen);
        atomic_fetch_add(&late->waiters, 1);
        uint32_t flag = atomic_load(&late->flag);
        errno = 0;
        if (behind(flag, group->round)) sleep_on(&late->flag, flag, until - now);
        atomic_fetch_sub(&late->waiters, 1);
        if (errno == EINTR) break; /* the caller has a signal to look after */
    }
    return round_arrived(group);
}

void story_tell(struct group *group, const unsigned char *text, size_t length) {
    struct story *mine = &group->stories[group->rank];
    length = length < sizeof mine->words ? length : sizeof mine->words;
    for (size_t word = 0; word * 8 < length; word++) {
        uint64_t value = 0;
        memcpy(&value, text + word * 8, length - word * 8 < 8 ? length - word * 8 : 8);
        atomic_store_explicit(&mine->words[word], value, memory_order_relaxed);
    }
    atomic_store_explicit(&mine->length, (uint32_t)length, memory_order_relaxed);
    atomic_store_explicit(&mine->round, group->round, memory_order_release);
}

/* Empty unless the rank has told one in one of the last three rounds: of those after a mismatch it may be in the second
 * when another is in the first. A torn one is possible, if the rank goes on just now. */
void story_hear(const struct group *group, uint32_t rank, struct tale *tale) {
    const struct story *theirs = &group->stories[rank];
    uint32_t even = atomic_load_explicit(&group->cells[rank][0].flag, memory_order_acquire);
    uint32_t odd = atomic_load_explicit(&group->cells[rank][1].flag, memory_order_acquire);
    uint32_t told = atomic_load_explicit(&theirs->round, memory_order_acquire);
    tale->length = 0;
    if ((behind(even, odd) ? odd : even) - told > 2) return;
    size_t length = atomic_load_explicit(&theirs->length, memory_order_relaxed);
    for (size_t word = 0; word * 8 < length; word++) {
        uint64_t value = atomic_load_explicit(&theirs->words[word], memory_order_relaxed);
        memcpy(tale->text + word * 8, &value, 8);
    }
    tale->length = length;
}

void count_up(_Atomic uint32_t *counter) {
    atomic_fetch_add(counter, 1);
    wake_all(counter);
}

/* The counter; if it is `seen` now, then only after it has changed or `park_ns` are over. */
uint32_t count_wait(_Atomic uint32_t *counter, uint32_t seen, uint64_t park_ns) {
    if (atomic_load_explicit(counter, memory_order_acquire) == seen && park_ns) sleep_on(counter, seen, park_ns);
    return atomic_load_explicit(counter, memory_order_acquire);
}
