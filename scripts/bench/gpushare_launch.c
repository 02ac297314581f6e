/* The cost of one launch, ns of CPU time of the thread: four ways to the same empty driver.
 * Built three times: as the driver (DRIVER), as a library that only forwards (FORWARD), and as the
 * program, which gets the path of the library to call. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef int launch_function(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                            unsigned, void *, void **, void **);
#define PARAMETERS                                                                              \
    (void *f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g, unsigned h, \
     void *stream, void **arguments, void **extra)

#if defined(DRIVER)

int cuLaunchKernel PARAMETERS { return 0; }
int cuCtxGetCurrent(void **context) {
    *context = &cuCtxGetCurrent;
    return 0;
}

#elif defined(FORWARD)

static void *table[1];
static void *look_up(void) {
    return table[0] = dlsym(dlopen(getenv("GSCHED_REAL_LIBCUDA"), RTLD_NOW), "cuLaunchKernel");
}
int cuLaunchKernel PARAMETERS {
    void *real = __atomic_load_n(&table[0], __ATOMIC_ACQUIRE);
    if (__builtin_expect(real == NULL, 0)) real = look_up();
    int result = ((launch_function *)real)(f, a, b, c, d, e, g, h, stream, arguments, extra);
    __asm__ volatile("" ::: "memory"); /* a call, not a jump, as in a hook */
    return result;
}

#else

int main(int count, char **arguments) {
    void *library = dlopen(arguments[1], RTLD_NOW);
    launch_function *launch = (launch_function *)dlsym(library, "cuLaunchKernel");
    long calls = count > 2 ? atol(arguments[2]) : 5000000;
    struct timespec start, end;
    if (launch(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL) != 0) return 1;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &start);
    for (long i = 0; i < calls; i++) launch(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
    printf("%.3f\n", ((double)(end.tv_sec - start.tv_sec) * 1e9 +
                      (double)(end.tv_nsec - start.tv_nsec)) / (double)calls);
    return 0;
}

#endif
