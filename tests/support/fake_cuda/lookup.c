/* cuGetProcAddress: exact in version and flags, as the driver is. */
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PER_THREAD 2u

#define GS_SYMBOL(index, name, base, version, flags, kind) extern CUresult name();
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wstrict-prototypes"
#include "symbols.inc"
#undef GS_SYMBOL
static const struct {
    const char *base;
    int version;
    unsigned int flags;
    void *function;
} symbols[] = {
#define GS_SYMBOL(index, name, base, version, flags, kind) {base, version, flags, (void *)name},
#include "symbols.inc"
#undef GS_SYMBOL
};
#pragma GCC diagnostic pop

/* An address that no exported name has, as for a function that the driver hides. */
static CUresult hidden(void) { return (CUresult)802; }

static void *find(const char *symbol, int version, uint64_t flags) {
    int best = -1, known = version < fake_version ? version : fake_version;
    if (version >= 12000 && strcmp(symbol, "cuGraphInstantiate") == 0)
        symbol = "cuGraphInstantiateWithFlags";
    for (int pass = 0; pass < 2 && best < 0; pass++) {
        unsigned int suffix = pass == 0 && (flags & PER_THREAD) ? PER_THREAD : 0;
        for (int i = 0; i < (int)(sizeof symbols / sizeof symbols[0]); i++)
            if (symbols[i].flags == suffix && symbols[i].version <= known &&
                strcmp(symbols[i].base, symbol) == 0 &&
                (best < 0 || symbols[i].version > symbols[best].version))
                best = i;
    }
    if (best >= 0 && version > 13000 && fake_number("GSCHED_FAKE_NEWER", 0)) return (void *)hidden;
    if (best >= 0 && fake_number("GSCHED_FAKE_HIDDEN", 0)) return (void *)hidden;
    return best >= 0 ? symbols[best].function : NULL;
}

/* Which names a runtime looks up, for the record of them. */
static void trace(const char *call, const char *symbol, int version, uint64_t flags) {
    const char *path = getenv("GSCHED_FAKE_TRACE");
    FILE *file = path != NULL ? fopen(path, "a") : NULL;
    if (file == NULL) return;
    fprintf(file, "%s %s %d %d\n", call, *symbol ? symbol : "-", version, (int)flags);
    fclose(file);
}

FAKE_API CUresult cuGetProcAddress(const char *symbol, void **pfn, int version, cuuint64_t flags) {
    fake_state();
    trace("v1", symbol, version, flags);
    *pfn = find(symbol, version, flags);
    return *pfn != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
FAKE_API CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int version,
                                      cuuint64_t flags, CUdriverProcAddressQueryResult *status) {
    fake_state();
    trace("v2", symbol, version, flags);
    *pfn = find(symbol, version, flags);
    if (status != NULL) *status = *pfn != NULL ? 0 : 1;
    return CUDA_SUCCESS;
}
