/* A small libnvidia-ml.so.1 for tests: two graphics cards at most, whose answers environment variables decide.
 *
 * STUB_<function>=<code>  makes that function answer with an NVML error code
 * STUB_GPUS=<count>       cards there are; without it one
 * STUB_LOST=<index>       makes every question to that card answer "GPU is lost"
 * STUB_REASONS=<bits>     what holds the clocks back
 * STUB_PROCESSES=<count>  programs on each card: pids from 1 up, the first with 4 GiB, the others with the number that
 *                         means "not available" under WDDM and WSL
 * STUB_PROCESS_MIB=<size> what the first has in place of 4 GiB
 * STUB_PROGRAMS=<file>    lines of a pid and MiB: programs on the first card beside those, whose memory is not free
 * STUB_NAME=<name>        what the cards are called
 * STUB_LIMIT_W=<watts>    the power limit in place of 450 W
 * STUB_USED_MIB=<size>    memory that is used without those programs, in place of 6 GiB
 * STUB_READINGS=<file>    temperature in C, power in W, clock in MHz and load in per cent, read for each answer
 * STUB_TOUCHED=<file>     gets a line for each card that is got hold of: what would wake it
 * Compiled with -DOLD_DRIVER, it lacks what came after driver 470.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ANSWER(function)                    \
    do {                                    \
        int code = configured_value("STUB_" #function); \
        if (code) return code;              \
    } while (0)

#define ANSWER_OF(gpu, function)                                    \
    do {                                                            \
        const char *lost = getenv("STUB_LOST");                     \
        if (lost && atoi(lost) == *(gpu)) return ERROR_GPU_IS_LOST; \
        ANSWER(function);                                           \
    } while (0)

enum {
    SUCCESS = 0,
    ERROR_INVALID_ARGUMENT = 2,
    ERROR_NOT_FOUND = 6,
    ERROR_INSUFFICIENT_SIZE = 7,
    ERROR_GPU_IS_LOST = 15,
    ERROR_VERSION_MISMATCH = 25
};
enum { PCIE_SENT = 0, PCIE_RECEIVED = 1 };
enum { TEMPERATURE_GPU = 0, CLOCK_SM = 1, CLOCK_MEM = 2 };
enum { MEMORY_V2 = 0x02000028 };

typedef const int *Gpu;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned int version; unsigned long long total, reserved, free, used; } MemoryV2;
typedef struct { unsigned int gpu, memory; } Utilization;
typedef struct { unsigned int pid; unsigned long long used; unsigned int gpu_instance, compute_instance; } Process;
typedef struct {
    char legacy_id[16];
    unsigned int domain, bus, device, device_id, subsystem_id;
    char id[32];
} Pci;

static const int gpus[] = {0, 1};
static const unsigned int buses[] = {0x01, 0x41};
static const unsigned long long GIB = 1ull << 30, NOT_AVAILABLE = ~0ull;
int stub_open_count = 0;

static int configured_value(const char *name) {
    const char *value = getenv(name);
    return value ? atoi(value) : SUCCESS;
}

static int write_text(char *into, unsigned int size, const char *words) {
    if (size <= strlen(words)) return ERROR_INSUFFICIENT_SIZE;
    strcpy(into, words);
    return SUCCESS;
}

static void touch(Gpu gpu) {
    const char *path = getenv("STUB_TOUCHED");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (!file) return;
    fprintf(file, "%d\n", *gpu);
    fclose(file);
}

int nvmlInitWithFlags(unsigned int flags) {
    ANSWER(nvmlInitWithFlags);
    if (flags) return ERROR_INVALID_ARGUMENT;
    stub_open_count++;
    return SUCCESS;
}

int nvmlShutdown(void) {
    stub_open_count--;
    return SUCCESS;
}

int nvmlSystemGetDriverVersion(char *version, unsigned int size) {
    ANSWER(nvmlSystemGetDriverVersion);
    return write_text(version, size, "580.65.06");
}

int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    ANSWER(nvmlSystemGetCudaDriverVersion_v2);
    *version = 13010;
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned int *count) {
    ANSWER(nvmlDeviceGetCount_v2);
    const char *value = getenv("STUB_GPUS");
    *count = value ? (unsigned int)atoi(value) : 1;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, Gpu *gpu) {
    if (index > 1) return ERROR_INVALID_ARGUMENT;
    touch(&gpus[index]);
    ANSWER_OF(&gpus[index], nvmlDeviceGetHandleByIndex_v2);
    *gpu = &gpus[index];
    return SUCCESS;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *id, Gpu *gpu) {
    unsigned int domain, bus, device;
    if (sscanf(id, "%x:%x:%x.0", &domain, &bus, &device) != 3) return ERROR_INVALID_ARGUMENT;
    for (int index = 0; index < 2; index++) {
        if (bus == buses[index]) return nvmlDeviceGetHandleByIndex_v2((unsigned int)index, gpu);
    }
    return ERROR_NOT_FOUND;
}

int nvmlDeviceGetIndex(Gpu gpu, unsigned int *index) {
    ANSWER_OF(gpu, nvmlDeviceGetIndex);
    *index = (unsigned int)*gpu;
    return SUCCESS;
}

int nvmlDeviceGetName(Gpu gpu, char *name, unsigned int size) {
    ANSWER_OF(gpu, nvmlDeviceGetName);
    const char *configured_name = getenv("STUB_NAME");
    return write_text(name, size, configured_name ? configured_name : "NVIDIA Stub 24GB");
}

int nvmlDeviceGetUUID(Gpu gpu, char *uuid, unsigned int size) {
    ANSWER_OF(gpu, nvmlDeviceGetUUID);
    return write_text(uuid, size, *gpu ? "GPU-one" : "GPU-zero");
}

int nvmlDeviceGetPciInfo_v3(Gpu gpu, Pci *pci) {
    ANSWER_OF(gpu, nvmlDeviceGetPciInfo_v3);
    memset(pci, 0, sizeof *pci);
    pci->bus = buses[*gpu];
    pci->device_id = 0x268410de;
    snprintf(pci->id, sizeof pci->id, "00000000:%02X:00.0", pci->bus);
    return SUCCESS;
}

int nvmlDeviceGetCudaComputeCapability(Gpu gpu, int *major, int *minor) {
    ANSWER_OF(gpu, nvmlDeviceGetCudaComputeCapability);
    *major = 8;
    *minor = 9;
    return SUCCESS;
}

/* Reads the programs of STUB_PROGRAMS, `room` of them at most, and returns how many there are. */
static unsigned int programs(Gpu gpu, Process *into, unsigned int room, unsigned long long *bytes) {
    const char *path = getenv("STUB_PROGRAMS");
    FILE *file = path && *gpu == 0 ? fopen(path, "r") : NULL;
    unsigned int count = 0, pid;
    unsigned long long mib;
    *bytes = 0;
    if (!file) return 0;
    while (fscanf(file, "%u %llu", &pid, &mib) == 2) {
        if (into && count < room) into[count] = (Process){pid, mib << 20, 0, 0};
        *bytes += mib << 20;
        count++;
    }
    fclose(file);
    return count;
}

static unsigned long long used(void) {
    const char *mib = getenv("STUB_USED_MIB");
    return mib ? strtoull(mib, NULL, 0) << 20 : 6 * GIB;
}

enum { TEMPERATURE, POWER_W, CLOCK_MHZ, LOAD, READINGS };

static unsigned int reading(int which, unsigned int usual) {
    const char *path = getenv("STUB_READINGS");
    FILE *file = path ? fopen(path, "r") : NULL;
    unsigned int read[READINGS];
    if (!file) return usual;
    int count = fscanf(file, "%u %u %u %u", &read[0], &read[1], &read[2], &read[3]);
    fclose(file);
    return count == READINGS ? read[which] : usual;
}

/* The older question counts what the driver reserves as used. */
int nvmlDeviceGetMemoryInfo(Gpu gpu, Memory *memory) {
    ANSWER_OF(gpu, nvmlDeviceGetMemoryInfo);
    unsigned long long taken;
    programs(gpu, NULL, 0, &taken);
    *memory = (Memory){24 * GIB, 24 * GIB - used() - taken, used() + taken};
    return SUCCESS;
}

int nvmlDeviceGetMemoryBusWidth(Gpu gpu, unsigned int *bits) {
    ANSWER_OF(gpu, nvmlDeviceGetMemoryBusWidth);
    *bits = 384;
    return SUCCESS;
}

int nvmlDeviceGetDisplayActive(Gpu gpu, unsigned int *active) {
    ANSWER_OF(gpu, nvmlDeviceGetDisplayActive);
    *active = *gpu == 0;
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(Gpu gpu, Utilization *use) {
    ANSWER_OF(gpu, nvmlDeviceGetUtilizationRates);
    *use = (Utilization){reading(LOAD, 87), 42};
    return SUCCESS;
}

/* KB/s; the driver counts what the GPU sends and what it receives. */
int nvmlDeviceGetPcieThroughput(Gpu gpu, int counter, unsigned int *value) {
    ANSWER_OF(gpu, nvmlDeviceGetPcieThroughput);
    if (counter != PCIE_SENT && counter != PCIE_RECEIVED) return ERROR_INVALID_ARGUMENT;
    *value = counter == PCIE_RECEIVED ? 2097152 : 1024;
    return SUCCESS;
}

int nvmlDeviceGetTemperature(Gpu gpu, int sensor, unsigned int *celsius) {
    ANSWER_OF(gpu, nvmlDeviceGetTemperature);
    if (sensor != TEMPERATURE_GPU) return ERROR_INVALID_ARGUMENT;
    *celsius = reading(TEMPERATURE, 61);
    return SUCCESS;
}

int nvmlDeviceGetEnforcedPowerLimit(Gpu gpu, unsigned int *milliwatts) {
    ANSWER_OF(gpu, nvmlDeviceGetEnforcedPowerLimit);
    int watts = configured_value("STUB_LIMIT_W");
    *milliwatts = watts ? 1000 * watts : 450000;
    return SUCCESS;
}

static int clock_of(int kind, unsigned int *mhz) {
    if (kind != CLOCK_SM && kind != CLOCK_MEM) return ERROR_INVALID_ARGUMENT;
    *mhz = kind == CLOCK_SM ? 2520 : 10501;
    return SUCCESS;
}

int nvmlDeviceGetClockInfo(Gpu gpu, int kind, unsigned int *mhz) {
    ANSWER_OF(gpu, nvmlDeviceGetClockInfo);
    int code = clock_of(kind, mhz);
    if (!code && kind == CLOCK_SM) *mhz = reading(CLOCK_MHZ, *mhz);
    return code;
}

int nvmlDeviceGetMaxClockInfo(Gpu gpu, int kind, unsigned int *mhz) {
    ANSWER_OF(gpu, nvmlDeviceGetMaxClockInfo);
    return clock_of(kind, mhz);
}

static int reasons(unsigned long long *bits) {
    const char *value = getenv("STUB_REASONS");
    *bits = value ? strtoull(value, NULL, 0) : 1;
    return SUCCESS;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(Gpu gpu, unsigned long long *bits) {
    ANSWER_OF(gpu, nvmlDeviceGetCurrentClocksThrottleReasons);
    return reasons(bits);
}

static int processes(Gpu gpu, unsigned int first, unsigned int *count, Process *into) {
    unsigned int there = (unsigned int)configured_value("STUB_PROCESSES"), room = *count;
    unsigned long long bytes;
    unsigned int more = first == 1 ? programs(gpu, NULL, 0, &bytes) : 0;
    *count = there + more;
    if (there + more > room || (there + more && !into)) return ERROR_INSUFFICIENT_SIZE;
    if (more) programs(gpu, into + there, more, &bytes);
    const char *mib = getenv("STUB_PROCESS_MIB");
    unsigned long long used = mib ? strtoull(mib, NULL, 0) << 20 : 4 * GIB;
    for (unsigned int place = 0; place < there; place++) {
        into[place] = (Process){first + place, place ? NOT_AVAILABLE : used, 0, 0};
    }
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(Gpu gpu, unsigned int *count, Process *into) {
    ANSWER_OF(gpu, nvmlDeviceGetComputeRunningProcesses_v3);
    return processes(gpu, 1, count, into);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(Gpu gpu, unsigned int *count, Process *into) {
    ANSWER_OF(gpu, nvmlDeviceGetGraphicsRunningProcesses_v3);
    return processes(gpu, 2, count, into);
}

#ifndef OLD_DRIVER
int nvmlDeviceGetPowerUsage(Gpu gpu, unsigned int *milliwatts) {
    ANSWER_OF(gpu, nvmlDeviceGetPowerUsage);
    unsigned int watts = reading(POWER_W, 0);
    *milliwatts = watts ? 1000 * watts : 312500;
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo_v2(Gpu gpu, MemoryV2 *memory) {
    ANSWER_OF(gpu, nvmlDeviceGetMemoryInfo_v2);
    if (memory->version != MEMORY_V2) return ERROR_VERSION_MISMATCH;
    const unsigned long long reserved = 482ull << 20;
    unsigned long long taken;
    programs(gpu, NULL, 0, &taken);
    *memory = (MemoryV2){MEMORY_V2, 24 * GIB, reserved, 24 * GIB - used() - taken, used() - reserved + taken};
    return SUCCESS;
}

int nvmlDeviceGetCurrentClocksEventReasons(Gpu gpu, unsigned long long *bits) {
    ANSWER_OF(gpu, nvmlDeviceGetCurrentClocksEventReasons);
    return reasons(bits);
}
#endif
