/* What the parts of the fake management library share. */
typedef int nvmlReturn_t;

/* A GPU, or a MIG device: that has the serial number of its compute instance, which is never 0. */
typedef struct device {
    unsigned int index, serial;
} *nvmlDevice_t;

enum {
    SUCCESS = 0,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NO_PERMISSION = 4,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    TIMEOUT = 10,
    GPU_IS_LOST = 15,
    RESET_REQUIRED = 16,
    IN_USE = 19,
    INSUFFICIENT_RESOURCES = 23,
};
enum { GPUS_MAX = 16, PROCESSES_MAX = 256 };

static const unsigned long long total_bytes = 16ull << 30;

typedef struct {
    unsigned int pid;
    unsigned long long usedGpuMemory;
    unsigned int gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_t;

unsigned int processes(unsigned int gpu, nvmlProcessInfo_t *found);
int is_lost(unsigned int gpu);
unsigned long long mig_bytes(nvmlDevice_t device);
