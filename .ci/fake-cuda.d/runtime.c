// As much of a CUDA runtime as llama.cpp's dry run calls: cards with memory from malloc; streams and events that are
// there and no more. FAKE_CUDA_CARDS is the number of cards, of 80 GiB each; none of them computes.
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAJOR = 8, MINOR = 9, PROCESSORS = 80, SHARED_BYTES = 49152, SHARED_BYTES_MOST = 101376, ALIGNMENT = 256 };
static const size_t CARD_BYTES = (size_t)80 << 30, USED_BYTES = (size_t)400 << 20;
static int current;

cudaError_t cudaGetDeviceCount(int *count) {
    const char *cards = getenv("FAKE_CUDA_CARDS");
    *count = cards ? atoi(cards) : 1;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
    current = device;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device) {
    *device = current;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *card, int device) {
    memset(card, 0, sizeof *card);
    strcpy(card->name, "Fake");
    card->major = MAJOR;
    card->minor = MINOR;
    card->totalGlobalMem = CARD_BYTES;
    card->warpSize = 32;
    card->multiProcessorCount = PROCESSORS;
    card->sharedMemPerBlock = SHARED_BYTES;
    card->sharedMemPerBlockOptin = SHARED_BYTES_MOST;
    card->pciBusID = device + 1;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int length, int device) {
    snprintf(id, length, "0000:%02x:00.0", device + 1);
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *unused, size_t *total) {
    *total = CARD_BYTES;
    *unused = CARD_BYTES - USED_BYTES;
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **memory, size_t size) {
    *memory = aligned_alloc(ALIGNMENT, (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
    return *memory ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaMallocHost(void **memory, size_t size) { return cudaMalloc(memory, size); }

cudaError_t cudaMallocManaged(void **memory, size_t size, unsigned flags) { return cudaMalloc(memory, size); }

cudaError_t cudaFree(void *memory) {
    free(memory);
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *memory) { return cudaFree(memory); }

static cudaError_t nothing_of(void *value, size_t size) {
    memset(value, 0, size);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr what, int device) {
    return nothing_of(value, sizeof *value);
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) { return nothing_of(can, sizeof *can); }

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *found, const void *function) {
    return nothing_of(found, sizeof *found);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    *event = (cudaEvent_t)&current;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    *stream = (cudaStream_t)&current;
    return cudaSuccess;
}

cudaError_t cudaSetDeviceFlags(unsigned flags) { return cudaSuccess; }
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) { return cudaSuccess; }
cudaError_t cudaDeviceSynchronize(void) { return cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t event) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t event) { return cudaSuccess; }
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) { return cudaSuccess; }
cudaError_t cudaHostRegister(void *memory, size_t size, unsigned flags) { return cudaSuccess; }
cudaError_t cudaHostUnregister(void *memory) { return cudaSuccess; }
cudaError_t cudaMemset(void *memory, int value, size_t size) { return cudaSuccess; }
cudaError_t cudaMemsetAsync(void *memory, int value, size_t size, cudaStream_t stream) { return cudaSuccess; }
cudaError_t cudaGetLastError(void) { return cudaSuccess; }
const char *cudaGetErrorString(cudaError_t error) { return "an error of a card that is not there"; }

// What compiled kernels register when their library is loaded.
void **__cudaRegisterFatBinary(void *kernels) {
    static void *handle;
    return &handle;
}

void __cudaRegisterFatBinaryEnd(void **handle) {}
void __cudaUnregisterFatBinary(void **handle) {}
void __cudaRegisterFunction(void) {}
void __cudaRegisterVar(void) {}
char __cudaInitModule(void **handle) { return 1; }
