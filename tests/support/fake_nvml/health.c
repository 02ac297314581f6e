/* How well GPUs are, from the NVML API reference (vR580): lines "GPU WORD VALUE" of the file
 * FAKE_NVML_HEALTH, read at each call.
 *
 * ecc N: uncorrectable errors since the driver was loaded; remap_failure 1; clocks MASK: reasons why
 * the clocks are low; lost 1: the GPU has fallen off the bus; xid N: an event, each line once;
 * links N: how many NVLinks it has; link_down N: number N does not carry data; recovery N: recovery
 * errors of link 0.
 */
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    nvmlDevice_t device;
    unsigned long long eventType, eventData;
    unsigned int gpuInstanceId, computeInstanceId;
} nvmlEventData_t;

static struct device event_devices[GPUS_MAX];
static int delivered, event_set;

/* Return the value of the last line for a GPU and a word, or a default. */
static unsigned long long value(unsigned int gpu, const char *word, unsigned long long otherwise)
{
    const char *path = getenv("FAKE_NVML_HEALTH");
    FILE *file = path == NULL ? NULL : fopen(path, "r");
    unsigned long long found = otherwise, number;
    unsigned int index;
    char name[32];
    if (file == NULL)
        return otherwise;
    while (fscanf(file, "%u %31s %llu", &index, name, &number) == 3)
        if (index == gpu && strcmp(name, word) == 0)
            found = number;
    fclose(file);
    return found;
}

int is_lost(unsigned int gpu) { return value(gpu, "lost", 0) != 0; }

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, int kind, int counter,
                                         unsigned long long *count)
{
    *count = kind == 1 && counter == 0 ? value(device->index, "ecc", 0) : 0;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *corrected,
                                       unsigned int *uncorrected, unsigned int *pending,
                                       unsigned int *failure)
{
    *corrected = *uncorrected = *pending = 0;
    *failure = (unsigned int)value(device->index, "remap_failure", 0);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device,
                                                       unsigned long long *reasons)
{
    *reasons = value(device->index, "clocks", 0);
    return SUCCESS;
}

/* "NVML_ERROR_INVALID_ARGUMENT if device or link is invalid", "NVML_ERROR_NOT_SUPPORTED if the
 * device doesn't support". */
nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, unsigned int *active)
{
    if (link >= value(device->index, "links", 0))
        return link == 0 ? NOT_SUPPORTED : INVALID_ARGUMENT;
    *active = value(device->index, "link_down", 99) != link;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, unsigned int link, int counter,
                                             unsigned long long *count)
{
    *count = counter == 1 && link == 0 ? value(device->index, "recovery", 0) : 0;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
    *index = device->index;
    return SUCCESS;
}

nvmlReturn_t nvmlEventSetCreate(int **set)
{
    *set = &event_set;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, int *set)
{
    (void)device, (void)types, (void)set;
    return SUCCESS;
}

/* "NVML_ERROR_TIMEOUT if no event arrived in specified timeout or interrupt arrived". */
nvmlReturn_t nvmlEventSetWait_v2(int *set, nvmlEventData_t *data, unsigned int timeout_ms)
{
    const char *path = getenv("FAKE_NVML_HEALTH");
    FILE *file = path == NULL ? NULL : fopen(path, "r");
    unsigned long long number;
    unsigned int index;
    int line = 0;
    char name[32];
    (void)set, (void)timeout_ms;
    if (file == NULL)
        return TIMEOUT;
    while (fscanf(file, "%u %31s %llu", &index, name, &number) == 3)
        if (strcmp(name, "xid") == 0 && ++line > delivered && index < GPUS_MAX) {
            delivered = line;
            event_devices[index].index = index;
            *data = (nvmlEventData_t){&event_devices[index], 8, number, 0xFFFFFFFF, 0xFFFFFFFF};
            fclose(file);
            return SUCCESS;
        }
    fclose(file);
    return TIMEOUT;
}
