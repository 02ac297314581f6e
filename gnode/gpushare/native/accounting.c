/* What this process has allocated: a hash table with one lock, and what that takes of the GPU.
 *
 * The driver takes memory in blocks of 2 MiB, and small allocations share a block. Which of them do
 * is seen by their addresses: a block is charged with the first allocation that touches it, and
 * given back with the last one. Arrays have no address; small ones are taken to lie closely. */
#include <stdlib.h>

#include "gpushare.h"

#define BUCKETS 8192

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER, sharing = PTHREAD_MUTEX_INITIALIZER;
static struct gs_entry *buckets[BUCKETS];
static uint64_t small_arrays; /* bytes of all arrays that share blocks */

static unsigned int bucket_of(enum gs_kind kind, uint64_t key) {
    uint64_t mixed = (key ^ ((uint64_t)kind << 58)) * 0x9e3779b97f4a7c15u;
    return (unsigned int)(mixed >> 51) % BUCKETS;
}

void gs_table_lock(void) { pthread_mutex_lock(&lock); }
void gs_table_unlock(void) { pthread_mutex_unlock(&lock); }

struct gs_entry *gs_table_find(enum gs_kind kind, uint64_t key) {
    struct gs_entry *entry = buckets[bucket_of(kind, key)];
    while (entry != NULL && (entry->kind != kind || entry->key != key)) entry = entry->next;
    return entry;
}

void gs_table_put(struct gs_entry *entry) {
    struct gs_entry **bucket = &buckets[bucket_of(entry->kind, entry->key)];
    entry->next = *bucket;
    *bucket = entry;
}

/* NULL: no memory is left; then the bytes stay charged until the process ends. */
struct gs_entry *gs_table_add(enum gs_kind kind, uint64_t key, uint64_t bytes, CUcontext context) {
    struct gs_entry *entry = calloc(1, sizeof *entry);
    if (entry == NULL) return NULL;
    entry->kind = kind;
    entry->key = key;
    entry->bytes = bytes;
    entry->context = context;
    gs_table_put(entry);
    return entry;
}

void gs_table_pull(struct gs_entry *entry) {
    struct gs_entry **place = &buckets[bucket_of(entry->kind, entry->key)];
    while (*place != entry) place = &(*place)->next;
    *place = entry->next;
    entry->next = NULL;
}

/* From the driver's call to the charge: nobody may believe that a block is charged which is not. */
void gs_sharing_lock(void) { pthread_mutex_lock(&sharing); }
void gs_sharing_unlock(void) { pthread_mutex_unlock(&sharing); }

/* ---- what it takes: the lock is held ---- */

uint64_t gs_whole_blocks(uint64_t bytes) {
    uint64_t blocks = bytes / GS_BLOCK + (bytes % GS_BLOCK != 0);
    return blocks > UINT64_MAX / GS_BLOCK ? UINT64_MAX : blocks * GS_BLOCK;
}

static uint64_t touch(uint64_t block) {
    struct gs_entry *entry = gs_table_find(GS_KIND_BLOCK, block);
    bool is_new = entry == NULL;
    if (is_new) entry = gs_table_add(GS_KIND_BLOCK, block, 0, NULL);
    if (entry != NULL) entry->refs++;
    return is_new ? GS_BLOCK : 0;
}

static uint64_t leave(uint64_t block) {
    struct gs_entry *entry = gs_table_find(GS_KIND_BLOCK, block);
    if (entry == NULL || --entry->refs > 0) return 0;
    gs_table_pull(entry);
    free(entry);
    return GS_BLOCK;
}

/* Only the blocks at both ends can be shared with others; the rest is the allocation's own. */
static uint64_t for_blocks(const struct gs_entry *entry, uint64_t (*change)(uint64_t block)) {
    uint64_t first = entry->key / GS_BLOCK, last = (entry->key + entry->bytes - 1) / GS_BLOCK;
    bool shares_first = entry->key % GS_BLOCK != 0 || entry->bytes < GS_BLOCK;
    bool shares_last = (entry->key + entry->bytes) % GS_BLOCK != 0;
    uint64_t own = last - first + 1, bytes = 0;
    if (shares_first) {
        bytes += change(first);
        own--;
    }
    if (shares_last && (last != first || !shares_first)) {
        bytes += change(last);
        own--;
    }
    return bytes + own * GS_BLOCK;
}

static uint64_t array_growth(uint64_t bytes) {
    if (!gs_shares_block(bytes)) return gs_whole_blocks(bytes);
    uint64_t before = gs_whole_blocks(small_arrays);
    small_arrays += bytes;
    return gs_whole_blocks(small_arrays) - before;
}

static uint64_t array_shrinkage(uint64_t bytes) {
    if (!gs_shares_block(bytes)) return gs_whole_blocks(bytes);
    uint64_t before = gs_whole_blocks(small_arrays);
    small_arrays -= bytes;
    return before - gs_whole_blocks(small_arrays);
}

static uint64_t disposed(struct gs_entry *entry) {
    uint64_t bytes = entry->bytes;
    if (entry->kind == GS_KIND_POINTER && bytes > 0) bytes = for_blocks(entry, leave);
    if (entry->kind == GS_KIND_ARRAY) bytes = array_shrinkage(bytes);
    free(entry);
    return bytes;
}

/* ---- allocations ---- */

uint64_t gs_record(enum gs_kind kind, uint64_t key, uint64_t bytes, CUcontext context) {
    uint64_t growth = bytes;
    gs_table_lock();
    struct gs_entry *entry = gs_table_add(kind, key, bytes, context);
    if (entry == NULL)
        growth = gs_whole_blocks(bytes);
    else if (kind == GS_KIND_POINTER && bytes > 0)
        growth = for_blocks(entry, touch);
    else if (kind == GS_KIND_ARRAY)
        growth = array_growth(bytes);
    gs_table_unlock();
    return growth;
}

struct gs_entry *gs_detach(enum gs_kind kind, uint64_t key) {
    gs_table_lock();
    struct gs_entry *entry = gs_table_find(kind, key);
    if (entry != NULL) gs_table_pull(entry);
    gs_table_unlock();
    return entry;
}

void gs_attach(struct gs_entry *entry) {
    if (entry == NULL) return;
    gs_table_lock();
    gs_table_put(entry);
    gs_table_unlock();
}

uint64_t gs_dispose(struct gs_entry *entry) {
    if (entry == NULL) return 0;
    gs_table_lock();
    uint64_t bytes = disposed(entry);
    gs_table_unlock();
    return bytes;
}

uint64_t gs_table_drop_context(CUcontext context) {
    struct gs_entry *gone = NULL;
    uint64_t bytes = 0;
    if (context == NULL) return 0;
    gs_table_lock();
    for (unsigned int i = 0; i < BUCKETS; i++)
        for (struct gs_entry **place = &buckets[i]; *place != NULL;) {
            struct gs_entry *entry = *place;
            if (entry->context != context) {
                place = &entry->next;
                continue;
            }
            *place = entry->next;
            entry->next = gone;
            gone = entry;
        }
    while (gone != NULL) { /* behind the walk, as it removes blocks */
        struct gs_entry *entry = gone;
        gone = entry->next;
        bytes += disposed(entry);
    }
    gs_table_unlock();
    return bytes;
}

size_t gs_table_keys(enum gs_kind kind, uint64_t *keys, size_t most) {
    size_t count = 0;
    gs_table_lock();
    for (unsigned int i = 0; i < BUCKETS; i++)
        for (struct gs_entry *entry = buckets[i]; entry != NULL; entry = entry->next)
            if (entry->kind == kind && count < most) keys[count++] = entry->key;
    gs_table_unlock();
    return count;
}

uint64_t gs_table_bytes(enum gs_kind kind) {
    uint64_t bytes = 0;
    gs_table_lock();
    for (unsigned int i = 0; i < BUCKETS; i++)
        for (struct gs_entry *entry = buckets[i]; entry != NULL; entry = entry->next)
            if (entry->kind == kind) bytes += entry->bytes;
    gs_table_unlock();
    return bytes;
}

/* What the parent has allocated is not the child's. */
void gs_table_forget_after_fork(void) {
    pthread_mutex_init(&lock, NULL);
    pthread_mutex_init(&sharing, NULL);
    small_arrays = 0;
    for (unsigned int i = 0; i < BUCKETS; i++) {
        while (buckets[i] != NULL) {
            struct gs_entry *entry = buckets[i];
            buckets[i] = entry->next;
            free(entry);
        }
    }
}
