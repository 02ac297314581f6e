/* What this process has allocated: a hash table with one lock. */
#include <stdlib.h>

#include "gpushare.h"

#define BUCKETS 8192

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct gs_entry *buckets[BUCKETS];

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

/* NULL: no memory is left; then the bytes stay charged until the process ends. */
struct gs_entry *gs_table_add(enum gs_kind kind, uint64_t key, uint64_t bytes, CUcontext context) {
    struct gs_entry *entry = calloc(1, sizeof *entry);
    if (entry == NULL) return NULL;
    struct gs_entry **bucket = &buckets[bucket_of(kind, key)];
    entry->kind = kind;
    entry->key = key;
    entry->bytes = bytes;
    entry->context = context;
    entry->next = *bucket;
    *bucket = entry;
    return entry;
}

void gs_table_remove(struct gs_entry *entry) {
    struct gs_entry **place = &buckets[bucket_of(entry->kind, entry->key)];
    while (*place != entry) place = &(*place)->next;
    *place = entry->next;
    free(entry);
}

void gs_table_rename(struct gs_entry *entry, uint64_t key) {
    struct gs_entry **place = &buckets[bucket_of(entry->kind, entry->key)];
    while (*place != entry) place = &(*place)->next;
    *place = entry->next;
    entry->key = key;
    place = &buckets[bucket_of(entry->kind, key)];
    entry->next = *place;
    *place = entry;
}

void gs_table_each(bool (*visit)(struct gs_entry *entry, void *argument), void *argument) {
    for (unsigned int i = 0; i < BUCKETS; i++)
        for (struct gs_entry **place = &buckets[i]; *place != NULL;) {
            struct gs_entry *entry = *place;
            if (visit(entry, argument)) {
                place = &entry->next;
            } else {
                *place = entry->next;
                free(entry);
            }
        }
}

struct drop {
    CUcontext context;
    uint64_t bytes;
};

static bool stays(struct gs_entry *entry, void *argument) {
    struct drop *drop = argument;
    if (entry->context != drop->context) return true;
    drop->bytes += entry->bytes;
    return false;
}

uint64_t gs_table_drop_context(CUcontext context) {
    struct drop drop = {.context = context};
    if (context == NULL) return 0;
    gs_table_lock();
    gs_table_each(stays, &drop);
    gs_table_unlock();
    return drop.bytes;
}

void gs_record(enum gs_kind kind, uint64_t key, uint64_t bytes, CUcontext context) {
    gs_table_lock();
    gs_table_add(kind, key, bytes, context);
    gs_table_unlock();
}

uint64_t gs_take(enum gs_kind kind, uint64_t key) {
    gs_table_lock();
    struct gs_entry *entry = gs_table_find(kind, key);
    uint64_t bytes = entry != NULL ? entry->bytes : 0;
    if (entry != NULL) gs_table_remove(entry);
    gs_table_unlock();
    return bytes;
}

void gs_forget(enum gs_kind kind, uint64_t key) { gs_give_back(gs_take(kind, key)); }

/* What the parent has allocated is not the child's. */
void gs_table_forget_after_fork(void) {
    pthread_mutex_init(&lock, NULL);
    for (unsigned int i = 0; i < BUCKETS; i++) {
        while (buckets[i] != NULL) {
            struct gs_entry *entry = buckets[i];
            buckets[i] = entry->next;
            free(entry);
        }
    }
}
