/* cuGetProcAddress: the driver chooses the prototype, and the library only exchanges the address.
 *
 * The driver's answer is compared with the addresses of its exported functions. If it is that of a
 * hooked name, the caller gets that hook. An address that is not exported under any name is looked
 * up in the table of versions: the newest prototype not newer than the version asked for, with the
 * suffix that the flags choose. A prototype newer than the table stays the driver's, is counted and
 * said, because its calls escape; so is an entry point that only the node's driver has. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "gpushare.h"

#define GS_PER_THREAD 2u
#define GS_NEWEST 13000
#define GS_UNKNOWN_VERSION 2147483647 /* as build.py has it: only the node's driver has it */

struct gs_symbol {
    const char *base;
    int version;
    unsigned int flags;
    void *hook; /* NULL: only passed on */
};

#define GS_HOOK_OF_HOOK(name) extern CUresult name();
#define GS_HOOK_OF_FORWARD(name)
#define GS_ADDRESS_OF_HOOK(name) (void *)name
#define GS_ADDRESS_OF_FORWARD(name) NULL

/* Only addresses are taken here: the prototypes are where the hooks are defined. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wstrict-prototypes"
#ifdef GS_HAVE_CUDA_H
extern CUresult cuGetProcAddress_v2_ptsz(); /* cuda.h has no prototype of it */
#else
#define GS_SYMBOL(index, name, base, version, flags, kind) GS_HOOK_OF_##kind(name)
#include "symbols.inc"
#undef GS_SYMBOL
#endif

static const struct gs_symbol symbols[GS_SYMBOLS] = {
#define GS_SYMBOL(index, name, base, version, flags, kind) \
    [index] = {base, version, flags, GS_ADDRESS_OF_##kind(name)},
#include "symbols.inc"
#undef GS_SYMBOL
};
#pragma GCC diagnostic pop

_Atomic uint64_t gs_unhooked_symbols;

static void say_newer(const char *name, const char *of) {
    atomic_fetch_add(&gs_unhooked_symbols, 1);
    gs_say("%s%s is newer than gsched: its calls are not limited", name, of);
}

static bool is_hooked_base(const char *base) {
    for (unsigned int i = 0; i < GS_SYMBOLS; i++)
        if (symbols[i].hook != NULL && strcmp(symbols[i].base, base) == 0) return true;
    return false;
}

/* cuda.h calls cuGraphInstantiateWithFlags cuGraphInstantiate from version 12.0 on. */
static const char *base_of(const char *symbol, int version) {
    if (version >= 12000 && strcmp(symbol, "cuGraphInstantiate") == 0)
        return "cuGraphInstantiateWithFlags";
    return symbol;
}

static int by_version(const char *base, int version, cuuint64_t flags) {
    int best = -1;
    for (unsigned int pass = 0; pass < 2 && best < 0; pass++) {
        unsigned int suffix = pass == 0 && (flags & GS_PER_THREAD) ? GS_PER_THREAD : 0;
        for (unsigned int i = 0; i < GS_SYMBOLS; i++)
            if (symbols[i].flags == suffix && symbols[i].version <= version &&
                strcmp(symbols[i].base, base) == 0 &&
                (best < 0 || symbols[i].version > symbols[best].version))
                best = (int)i;
    }
    return best;
}

/* At its first call by that name, which no look-up has seen. */
void gs_note_use(unsigned int index) {
    if (symbols[index].version == GS_UNKNOWN_VERSION && is_hooked_base(symbols[index].base))
        say_newer(gs_names[index], "");
}

static void *route(const char *symbol, int version, cuuint64_t flags, void *answer) {
    char of[32];
    const char *base = base_of(symbol, version);
    if (answer == NULL || !is_hooked_base(base)) return answer;
    int expected = by_version(base, version, flags);
    if (expected >= 0 && gs_real_function((unsigned int)expected) == answer)
        return symbols[expected].hook != NULL ? symbols[expected].hook : answer;
    for (unsigned int i = 0; i < GS_SYMBOLS; i++)
        if (symbols[i].version != GS_UNKNOWN_VERSION && strcmp(symbols[i].base, base) == 0 &&
            gs_real_function(i) == answer)
            return symbols[i].hook != NULL ? symbols[i].hook : answer;
    if (expected >= 0 && version <= GS_NEWEST && symbols[expected].hook != NULL)
        return symbols[expected].hook;
    snprintf(of, sizeof of, " of CUDA %d", version);
    say_newer(symbol, of);
    return answer;
}

#define GS_PROTOTYPE_V1 (const char *symbol, void **pfn, int version, cuuint64_t flags)
#define GS_PROTOTYPE_V2                                                   \
    (const char *symbol, void **pfn, int version, cuuint64_t flags,       \
     CUdriverProcAddressQueryResult *status)

GS_EXPORT CUresult cuGetProcAddress GS_PROTOTYPE_V1 {
    CUresult result = GS_REAL(cuGetProcAddress)(symbol, pfn, version, flags);
    if (result == CUDA_SUCCESS && symbol != NULL && pfn != NULL)
        *pfn = route(symbol, version, flags, *pfn);
    return result;
}

GS_EXPORT CUresult cuGetProcAddress_v2 GS_PROTOTYPE_V2 {
    CUresult result = GS_REAL(cuGetProcAddress_v2)(symbol, pfn, version, flags, status);
    if (result == CUDA_SUCCESS && symbol != NULL && pfn != NULL)
        *pfn = route(symbol, version, flags, *pfn);
    return result;
}

GS_EXPORT CUresult cuGetProcAddress_v2_ptsz GS_PROTOTYPE_V2;
GS_EXPORT CUresult cuGetProcAddress_v2_ptsz GS_PROTOTYPE_V2 {
    CUresult result = GS_REAL(cuGetProcAddress_v2_ptsz)(symbol, pfn, version, flags, status);
    if (result == CUDA_SUCCESS && symbol != NULL && pfn != NULL)
        *pfn = route(symbol, version, flags | GS_PER_THREAD, *pfn);
    return result;
}
