/* All other entry points, which are counted and do nothing, and the look-up of entry points. */
#include "fake.h"

#include <string.h>

#define GS_SYMBOL(index, name, base, version, flags, kind)              \
    FAKE_API __attribute__((weak)) CUresult name(void);                 \
    FAKE_API __attribute__((weak)) CUresult name(void) {                \
        atomic_fetch_add(&fake_state()->stub_calls[index], 1);          \
        return FAKE_NOT_SUPPORTED;                                      \
    }
#include "symbols.inc"
#undef GS_SYMBOL
