/* nvml_stub.c with partitioned cards (Multi-Instance GPU).
 *
 * STUB_MIG=<count>        slices of each card, at most two, of 9,728 MiB each, 128 of them used; without it MIG is off
 */

#define nvmlDeviceGetUUID whole_UUID
#define nvmlDeviceGetName whole_Name
#define nvmlDeviceGetMemoryInfo_v2 whole_MemoryInfo
#include "nvml_stub.c"
#undef nvmlDeviceGetUUID
#undef nvmlDeviceGetName
#undef nvmlDeviceGetMemoryInfo_v2

static const int slices[] = {10, 11};

int nvmlDeviceGetMigMode(Gpu gpu, unsigned int *now, unsigned int *next) {
    ANSWER_OF(gpu, nvmlDeviceGetMigMode);
    *now = *next = getenv("STUB_MIG") != NULL;
    return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(Gpu gpu, unsigned int *count) {
    (void)gpu;
    *count = 7;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(Gpu gpu, unsigned int index, Gpu *slice) {
    (void)gpu;
    if ((int)index >= configured_value("STUB_MIG")) return ERROR_NOT_FOUND;
    *slice = &slices[index];
    return SUCCESS;
}

int nvmlDeviceGetUUID(Gpu gpu, char *uuid, unsigned int size) {
    return *gpu < 10 ? whole_UUID(gpu, uuid, size) : write_text(uuid, size, *gpu == 10 ? "MIG-zero" : "MIG-one");
}

int nvmlDeviceGetName(Gpu gpu, char *name, unsigned int size) {
    return *gpu < 10 ? whole_Name(gpu, name, size) : write_text(name, size, "NVIDIA Stub 24GB MIG 3g.10gb");
}

int nvmlDeviceGetMemoryInfo_v2(Gpu gpu, MemoryV2 *memory) {
    if (*gpu < 10) return whole_MemoryInfo(gpu, memory);
    const unsigned long long total = 9728ull << 20, used_by_all = 128ull << 20;
    *memory = (MemoryV2){MEMORY_V2, total, 0, total - used_by_all, used_by_all};
    return SUCCESS;
}
