/* MIG of the fake management library, written from the NVML API reference (vR580), "Multi Instance
 * GPU Management", and the tables of profiles in the MIG User Guide.
 *
 * FAKE_NVML_MIG is a file that stands for the driver's state and outlives processes; without it no
 * GPU has MIG. With FAKE_NVML_RESET a change of the mode needs a reset, with FAKE_NVML_USER the
 * caller is not root. A GPU has 8 slices of memory and 7 of multiprocessors, as an A100 or an H100.
 */
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { INSTANCES_MAX = 7, KINDS = 7, MEMORY_SLICES = 8, COMPUTE_SLICES = 7, NAME_MAX_BYTES = 96 };

/* NVML_GPU_INSTANCE_PROFILE_*, the number by which the driver knows it, and what it is. */
static const struct profile {
    unsigned int kind, id, slices, memory, most;
    const char *name;
} profiles[KINDS] = {
    {0, 19, 1, 1, 7, "MIG 1g.2gb"},   {7, 20, 1, 1, 1, "MIG 1g.2gb+me"},
    {9, 15, 1, 2, 4, "MIG 1g.4gb"},   {1, 14, 2, 2, 3, "MIG 2g.4gb"},
    {2, 9, 3, 4, 2, "MIG 3g.8gb"},    {3, 5, 4, 4, 1, "MIG 4g.8gb"},
    {4, 0, 7, 8, 1, "MIG 7g.16gb"},
};
/* Compute instances by slices: NVML_COMPUTE_INSTANCE_PROFILE_*. */
static const struct {
    unsigned int kind, slices;
} computes[] = {{0, 1}, {1, 2}, {2, 3}, {3, 4}, {4, 7}};

struct instance { /* a GPU instance; serial: of its compute instance, 0 where it has none */
    unsigned int there, id, profile, start, serial, compute;
};
struct gpu {
    unsigned int mode, pending;
    struct instance instances[INSTANCES_MAX];
};
static struct state {
    unsigned int serial;
    struct gpu gpus[GPUS_MAX];
} state;

typedef struct gpu_instance {
    unsigned int gpu, place;
} *nvmlGpuInstance_t;
typedef struct compute_instance {
    unsigned int gpu, place;
} *nvmlComputeInstance_t;

static struct gpu_instance gpu_instances[GPUS_MAX][INSTANCES_MAX];
static struct compute_instance compute_instances[GPUS_MAX][INSTANCES_MAX];
static struct device mig_devices[GPUS_MAX][INSTANCES_MAX];

typedef struct {
    unsigned int version, id, isP2pSupported, sliceCount, instanceCount, multiprocessorCount;
    unsigned int copyEngineCount, decoderCount, encoderCount, jpegCount, ofaCount;
    unsigned long long memorySizeMB;
    char name[NAME_MAX_BYTES];
} nvmlGpuInstanceProfileInfo_v2_t;

typedef struct {
    unsigned int version, id, sliceCount, instanceCount, multiprocessorCount;
    unsigned int sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount, sharedJpegCount;
    unsigned int sharedOfaCount;
    char name[NAME_MAX_BYTES];
} nvmlComputeInstanceProfileInfo_v2_t;

static int load(void)
{
    const char *path = getenv("FAKE_NVML_MIG");
    FILE *file = path == NULL ? NULL : fopen(path, "rb");
    if (path == NULL)
        return 0;
    memset(&state, 0, sizeof state);
    if (file != NULL) {
        if (fread(&state, sizeof state, 1, file) != 1)
            memset(&state, 0, sizeof state);
        fclose(file);
    }
    return 1;
}

static nvmlReturn_t save(void)
{
    FILE *file = fopen(getenv("FAKE_NVML_MIG"), "wb");
    if (file == NULL || fwrite(&state, sizeof state, 1, file) != 1 || fclose(file) != 0)
        abort();
    return SUCCESS;
}

static const struct profile *profile_of(unsigned int id)
{
    for (unsigned int at = 0; at < KINDS; at++)
        if (profiles[at].id == id)
            return &profiles[at];
    return NULL;
}

static struct instance *instance_of(unsigned int gpu, unsigned int place)
{
    return &state.gpus[gpu].instances[place];
}

static nvmlReturn_t may_change(void)
{
    if (!load())
        return NOT_SUPPORTED;
    return getenv("FAKE_NVML_USER") != NULL ? NO_PERMISSION : SUCCESS;
}

static int is_used(unsigned int gpu)
{
    nvmlProcessInfo_t found[PROCESSES_MAX];
    return processes(gpu, found) > 0;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *now, unsigned int *pending)
{
    if (!load())
        return NOT_SUPPORTED;
    *now = state.gpus[device->index].mode;
    *pending = state.gpus[device->index].pending;
    return SUCCESS;
}

/* "This API may unbind or reset the device to activate the requested mode": a mode that is not
 * active yet is pending, and *status says why. */
nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned int mode, nvmlReturn_t *status)
{
    nvmlReturn_t result = may_change();
    struct gpu *gpu = &state.gpus[device->index];
    if (result != SUCCESS)
        return result;
    gpu->pending = mode;
    *status = SUCCESS;
    if (gpu->mode != mode && getenv("FAKE_NVML_RESET") != NULL)
        *status = RESET_REQUIRED;
    else if (gpu->mode != mode && is_used(device->index))
        *status = IN_USE;
    else
        gpu->mode = mode;
    return save();
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned int kind,
                                                  nvmlGpuInstanceProfileInfo_v2_t *info)
{
    if (!load() || !state.gpus[device->index].mode)
        return NOT_SUPPORTED;
    for (unsigned int at = 0; at < KINDS; at++)
        if (profiles[at].kind == kind) {
            info->id = profiles[at].id;
            info->sliceCount = profiles[at].slices;
            info->instanceCount = profiles[at].most;
            snprintf(info->name, sizeof info->name, "%s", profiles[at].name);
            return SUCCESS;
        }
    return NOT_SUPPORTED;
}

/* The first place where the memory slices are free, "start" being a multiple of the size. */
nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned int id,
                                         nvmlGpuInstance_t *made)
{
    nvmlReturn_t result = may_change();
    const struct profile *profile = profile_of(id);
    struct gpu *gpu = &state.gpus[device->index];
    unsigned int taken = 0, slices = 0, same = 0, start, place = INSTANCES_MAX;
    if (result != SUCCESS)
        return result;
    if (profile == NULL || !gpu->mode)
        return NOT_SUPPORTED;
    for (unsigned int at = INSTANCES_MAX; at-- > 0;) {
        const struct instance *one = &gpu->instances[at];
        if (!one->there) {
            place = at;
            continue;
        }
        const struct profile *has = profile_of(one->profile);
        taken |= ((1u << has->memory) - 1) << one->start;
        slices += has->slices;
        same += one->profile == id;
    }
    unsigned int mask = (1u << profile->memory) - 1;
    for (start = 0; start + profile->memory <= MEMORY_SLICES; start += profile->memory)
        if (!(taken & mask << start) && (profile->memory > 1 || start < COMPUTE_SLICES))
            break;
    /* Four slices of multiprocessors begin at the first one. */
    if (place == INSTANCES_MAX || same >= profile->most || slices + profile->slices > COMPUTE_SLICES
        || start + profile->memory > MEMORY_SLICES || (profile->slices == 4 && start > 0))
        return INSUFFICIENT_RESOURCES;
    gpu->instances[place] = (struct instance){1, place + 1, id, start, 0, 0};
    gpu_instances[device->index][place] = (struct gpu_instance){device->index, place};
    *made = &gpu_instances[device->index][place];
    return save();
}

nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t one)
{
    nvmlReturn_t result = may_change();
    struct instance *instance = instance_of(one->gpu, one->place);
    if (result != SUCCESS)
        return result;
    if (instance->serial > 0 || is_used(one->gpu))
        return IN_USE;
    instance->there = 0;
    return save();
}

nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned int id,
                                       nvmlGpuInstance_t *found, unsigned int *count)
{
    unsigned int number = 0, room = *count;
    if (!load() || !state.gpus[device->index].mode)
        return NOT_SUPPORTED;
    for (unsigned int place = 0; place < INSTANCES_MAX; place++) {
        const struct instance *one = instance_of(device->index, place);
        if (!one->there || one->profile != id)
            continue;
        gpu_instances[device->index][place] = (struct gpu_instance){device->index, place};
        if (number < room)
            found[number] = &gpu_instances[device->index][place];
        number++;
    }
    *count = number;
    return number > room ? INSUFFICIENT_SIZE : SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(
    nvmlGpuInstance_t one, unsigned int kind, unsigned int engine,
    nvmlComputeInstanceProfileInfo_v2_t *info)
{
    (void)engine;
    if (!load())
        return NOT_SUPPORTED;
    const struct profile *profile = profile_of(instance_of(one->gpu, one->place)->profile);
    for (unsigned int at = 0; at < sizeof computes / sizeof *computes; at++)
        if (computes[at].kind == kind && computes[at].slices <= profile->slices) {
            info->id = kind;
            info->sliceCount = computes[at].slices;
            info->instanceCount = profile->slices / computes[at].slices;
            snprintf(info->name, sizeof info->name, "MIG %uc", computes[at].slices);
            return SUCCESS;
        }
    return NOT_SUPPORTED;
}

/* One compute instance for each GPU instance: gsched makes no more. */
nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t one, unsigned int id,
                                                  nvmlComputeInstance_t *made)
{
    nvmlReturn_t result = may_change();
    struct instance *instance = instance_of(one->gpu, one->place);
    if (result != SUCCESS)
        return result;
    if (instance->serial > 0)
        return INSUFFICIENT_RESOURCES;
    instance->serial = ++state.serial;
    instance->compute = id;
    compute_instances[one->gpu][one->place] = (struct compute_instance){one->gpu, one->place};
    *made = &compute_instances[one->gpu][one->place];
    return save();
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t one, unsigned int id,
                                                nvmlComputeInstance_t *found, unsigned int *count)
{
    if (!load())
        return NOT_SUPPORTED;
    const struct instance *instance = instance_of(one->gpu, one->place);
    *count = instance->serial > 0 && instance->compute == id;
    if (*count > 0) {
        compute_instances[one->gpu][one->place] = (struct compute_instance){one->gpu, one->place};
        found[0] = &compute_instances[one->gpu][one->place];
    }
    return SUCCESS;
}

nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t one)
{
    nvmlReturn_t result = may_change();
    if (result != SUCCESS)
        return result;
    if (is_used(one->gpu))
        return IN_USE;
    instance_of(one->gpu, one->place)->serial = 0;
    return save();
}

/* ---- MIG devices: what CUDA uses ---- */

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
    (void)device;
    *count = INSTANCES_MAX;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int slot,
                                                 nvmlDevice_t *found)
{
    if (!load() || slot >= INSTANCES_MAX)
        return NOT_SUPPORTED;
    const struct instance *one = instance_of(device->index, slot);
    if (!one->there || one->serial == 0)
        return NOT_FOUND;
    mig_devices[device->index][slot] = (struct device){device->index, one->serial};
    *found = &mig_devices[device->index][slot];
    return SUCCESS;
}

static const struct instance *of_device(nvmlDevice_t device)
{
    if (load())
        for (unsigned int place = 0; place < INSTANCES_MAX; place++)
            if (instance_of(device->index, place)->there
                && instance_of(device->index, place)->serial == device->serial)
                return instance_of(device->index, place);
    return NULL;
}

unsigned long long mig_bytes(nvmlDevice_t device)
{
    const struct instance *one = of_device(device);
    return one == NULL ? 0 : total_bytes / MEMORY_SLICES * profile_of(one->profile)->memory;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id)
{
    const struct instance *one = of_device(device);
    if (one == NULL)
        return NOT_FOUND;
    *id = one->id;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id)
{
    (void)device;
    *id = 0;
    return SUCCESS;
}
