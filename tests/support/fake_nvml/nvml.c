/* Stands in for NVIDIA's management library, written from the NVML API reference (vR580).
 *
 * It has FAKE_NVML_GPUS GPUs. The processes on them are lines "GPU PID BYTES" of the file
 * FAKE_NVML_PROCESSES, read at each call; memory counts in bytes. MIG is in mig.c.
 */
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
    unsigned int gpu, memory;
} nvmlUtilization_t;

typedef struct {
    char busIdLegacy[16];
    unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;

static struct device devices[GPUS_MAX];

static unsigned int count(void)
{
    const char *text = getenv("FAKE_NVML_GPUS");
    unsigned int found = text == NULL ? 1 : (unsigned int)strtoul(text, NULL, 10);
    return found < GPUS_MAX ? found : GPUS_MAX;
}

unsigned int processes(unsigned int gpu, nvmlProcessInfo_t *found)
{
    const char *path = getenv("FAKE_NVML_PROCESSES");
    FILE *file = path == NULL ? NULL : fopen(path, "r");
    unsigned int number = 0, index, pid;
    unsigned long long bytes;
    if (file == NULL)
        return 0;
    while (number < PROCESSES_MAX && fscanf(file, "%u %u %llu", &index, &pid, &bytes) == 3)
        if (index == gpu)
            found[number++] = (nvmlProcessInfo_t){pid, bytes, 0xFFFFFFFF, 0xFFFFFFFF};
    fclose(file);
    return number;
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    (void)flags;
    for (unsigned int index = 0; index < GPUS_MAX; index++)
        devices[index].index = index;
    return SUCCESS;
}

nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
nvmlReturn_t nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(nvmlReturn_t result)
{
    switch (result) {
    case NOT_SUPPORTED:
        return "Not Supported";
    case NO_PERMISSION:
        return "Insufficient Permissions";
    case IN_USE:
        return "In use by another client";
    case INSUFFICIENT_RESOURCES:
        return "Insufficient Resources";
    case GPU_IS_LOST:
        return "GPU is lost";
    default:
        return "Error";
    }
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *number)
{
    *number = count();
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    if (index >= count())
        return INVALID_ARGUMENT;
    if (is_lost(index))
        return GPU_IS_LOST;
    *device = &devices[index];
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
    (void)device;
    snprintf(name, length, "NVIDIA Fake 100");
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
    if (device->serial > 0)
        snprintf(uuid, length, "MIG-00000000-0000-0000-0000-%012u", device->serial);
    else
        snprintf(uuid, length, "GPU-00000000-0000-0000-0000-%012u", device->index);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minor)
{
    *minor = device->index;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    memset(pci, 0, sizeof(*pci));
    pci->bus = 0x80 + device->index;
    snprintf(pci->busId, sizeof(pci->busId), "00000000:%02X:00.0", pci->bus);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    nvmlProcessInfo_t found[PROCESSES_MAX];
    unsigned int number = processes(device->index, found);
    unsigned long long used = 0;
    if (device->serial > 0) {
        unsigned long long bytes = mig_bytes(device);
        *memory = (nvmlMemory_t){bytes, bytes, 0};
        return SUCCESS;
    }
    while (number > 0)
        used += found[--number].usedGpuMemory;
    *memory = (nvmlMemory_t){total_bytes, total_bytes - used, used};
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates)
{
    nvmlProcessInfo_t found[PROCESSES_MAX];
    const char *path = getenv("FAKE_NVML_UTILISATION"); /* a file: percent of each GPU in order */
    FILE *file = path == NULL ? NULL : fopen(path, "r");
    unsigned int percent = processes(device->index, found) > 0 ? 90 : 0;
    for (unsigned int at = 0; file != NULL && at <= device->index; at++)
        if (fscanf(file, "%u", &percent) != 1)
            break;
    if (file != NULL)
        fclose(file);
    *rates = (nvmlUtilization_t){percent, 0};
    return SUCCESS;
}

/* "On successful return, the function sets *infoCount to the number of running processes"; with too
 * little room it sets it as well and returns NVML_ERROR_INSUFFICIENT_SIZE. */
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *room,
                                                     nvmlProcessInfo_t *infos)
{
    nvmlProcessInfo_t found[PROCESSES_MAX];
    unsigned int number = processes(device->index, found), had = *room;
    *room = number;
    if (number > had)
        return INSUFFICIENT_SIZE;
    if (number > 0)
        memcpy(infos, found, number * sizeof(*found));
    return SUCCESS;
}

/* nvmlComputeMode_t: FAKE_NVML_COMPUTE_MODE, which is that of all GPUs. */
nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, int *mode)
{
    const char *text = getenv("FAKE_NVML_COMPUTE_MODE");
    (void)device;
    *mode = text == NULL ? 0 : atoi(text);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int *room,
                                                      nvmlProcessInfo_t *infos)
{
    (void)device, (void)infos;
    *room = 0;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNumGpuCores(nvmlDevice_t device, unsigned int *cores)
{
    (void)device;
    *cores = 1280;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    (void)device;
    *major = 8;
    *minor = 0;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, int kind, unsigned int *clock)
{
    (void)device, (void)kind;
    *clock = 1000;
    return SUCCESS;
}
