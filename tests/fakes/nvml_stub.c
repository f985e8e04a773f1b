/* A small libnvidia-ml.so.1 for tests: two graphics cards at most, whose answers environment variables decide.
 *
 * STUB_<function>=<code>  makes that function answer with an NVML error code
 * STUB_GPUS=<count>       cards there are; without it one
 * STUB_LOST=<index>       makes every question to that card answer "GPU is lost"
 * Compiled with -DOLD_DRIVER, it lacks nvmlDeviceGetPowerUsage.
 */

#include <stdlib.h>
#include <string.h>

#define ANSWER(function)                \
    do {                                \
        int code = told("STUB_" #function); \
        if (code) return code;          \
    } while (0)

#define ANSWER_OF(gpu, function)                                   \
    do {                                                           \
        const char *lost = getenv("STUB_LOST");                    \
        if (lost && atoi(lost) == *(gpu)) return ERROR_GPU_IS_LOST; \
        ANSWER(function);                                          \
    } while (0)

enum { SUCCESS = 0, ERROR_INVALID_ARGUMENT = 2, ERROR_INSUFFICIENT_SIZE = 7, ERROR_GPU_IS_LOST = 15 };
enum { TEMPERATURE_GPU = 0, CLOCK_SM = 1, CLOCK_MEM = 2 };

typedef const int *Gpu;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned int gpu, memory; } Utilization;

static const int gpus[] = {0, 1};
int stub_open_count = 0;

static int told(const char *name) {
    const char *value = getenv(name);
    return value ? atoi(value) : SUCCESS;
}

static int say(char *into, unsigned int size, const char *words) {
    if (size <= strlen(words)) return ERROR_INSUFFICIENT_SIZE;
    strcpy(into, words);
    return SUCCESS;
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
    return say(version, size, "580.65.06");
}

int nvmlDeviceGetCount_v2(unsigned int *count) {
    ANSWER(nvmlDeviceGetCount_v2);
    const char *value = getenv("STUB_GPUS");
    *count = value ? (unsigned int)atoi(value) : 1;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, Gpu *gpu) {
    if (index > 1) return ERROR_INVALID_ARGUMENT;
    ANSWER_OF(&gpus[index], nvmlDeviceGetHandleByIndex_v2);
    *gpu = &gpus[index];
    return SUCCESS;
}

int nvmlDeviceGetName(Gpu gpu, char *name, unsigned int size) {
    ANSWER_OF(gpu, nvmlDeviceGetName);
    return say(name, size, "NVIDIA Stub 24GB");
}

int nvmlDeviceGetUUID(Gpu gpu, char *uuid, unsigned int size) {
    ANSWER_OF(gpu, nvmlDeviceGetUUID);
    return say(uuid, size, *gpu ? "GPU-one" : "GPU-zero");
}

int nvmlDeviceGetMemoryInfo(Gpu gpu, Memory *memory) {
    ANSWER_OF(gpu, nvmlDeviceGetMemoryInfo);
    *memory = (Memory){24ull << 30, 18ull << 30, 6ull << 30};
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(Gpu gpu, Utilization *use) {
    ANSWER_OF(gpu, nvmlDeviceGetUtilizationRates);
    *use = (Utilization){87, 42};
    return SUCCESS;
}

int nvmlDeviceGetTemperature(Gpu gpu, int sensor, unsigned int *celsius) {
    ANSWER_OF(gpu, nvmlDeviceGetTemperature);
    if (sensor != TEMPERATURE_GPU) return ERROR_INVALID_ARGUMENT;
    *celsius = 61;
    return SUCCESS;
}

#ifndef OLD_DRIVER
int nvmlDeviceGetPowerUsage(Gpu gpu, unsigned int *milliwatts) {
    ANSWER_OF(gpu, nvmlDeviceGetPowerUsage);
    *milliwatts = 312500;
    return SUCCESS;
}
#endif

int nvmlDeviceGetClockInfo(Gpu gpu, int kind, unsigned int *mhz) {
    ANSWER_OF(gpu, nvmlDeviceGetClockInfo);
    if (kind != CLOCK_SM && kind != CLOCK_MEM) return ERROR_INVALID_ARGUMENT;
    *mhz = kind == CLOCK_SM ? 2520 : 10501;
    return SUCCESS;
}
