/* What the environment says, and how the library speaks to people. */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "gpushare.h"

static struct gs_settings settings;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static const char *value_of(const char *name) {
    const char *value = getenv(name);
    return value != NULL && value[0] != '\0' ? value : NULL;
}

static unsigned long long number_of(const char *name, unsigned long long otherwise) {
    const char *value = value_of(name);
    if (value == NULL) return otherwise;
    char *end = NULL;
    unsigned long long number = strtoull(value, &end, 10);
    if (*end == '\0') return number;
    gs_say("%s is not a number: %s", name, value);
    return otherwise;
}

static void read_settings(void) {
    const char *share_class = value_of("GSCHED_SHARE_CLASS");
    const char *fail = value_of("GSCHED_SHARE_FAIL");
    settings.socket_path = value_of("GSCHED_SHARE_SOCKET");
    settings.secret = value_of("GSCHED_SHARE_SECRET");
    settings.memory_bytes = number_of("GSCHED_SHARE_MEMORY_BYTES", 0);
    settings.high = share_class != NULL && strcmp(share_class, "high") == 0;
    settings.fail_open = fail == NULL || strcmp(fail, "closed") != 0;
    settings.gate_copies = number_of("GSCHED_SHARE_COPIES", settings.high ? 0 : 1) != 0;
    settings.patience_ms = (unsigned int)number_of("GSCHED_SHARE_PATIENCE_MS", 60000);
    if (settings.secret == NULL) settings.socket_path = NULL;
}

const struct gs_settings *gs_settings(void) {
    pthread_once(&once, read_settings);
    return &settings;
}

void gs_say(const char *format, ...) {
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    int length = snprintf(line, sizeof line, "gsched: process %d: ", (int)getpid());
    length += vsnprintf(line + length, sizeof line - (size_t)length - 1, format, arguments);
    va_end(arguments);
    if (length > (int)sizeof line - 2) length = (int)sizeof line - 2;
    line[length++] = '\n';
    if (write(STDERR_FILENO, line, (size_t)length) < 0) return; /* nobody listens */
}

uint64_t gs_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
