/* A graphics card of a chosen size for programs that ask Vulkan, on a machine without one.

   This Vulkan driver hands every call to Mesa's software renderer and changes only what tells a card from a processor:
   type, name, UUID, limits and memory. Its memory is counted: past the card's size an allocation fails as on a card.
   The renderer has one type of memory, which is the host's; a card with a processor has two. The second type here is
   host memory, as an engine asks for it to hold what it sends to the card, and is not counted.
   One library is one card, so its properties are compiled in:

   CARD_DRIVER   path of the renderer's library (libvulkan_lvp.so)
   CARD_NAME     what the card is called
   CARD_NUMBER   1 to 255, distinct for every card of a machine
   CARD_MIB      size of its memory
   CARD_USED_MIB how much of that others hold, which never changes
*/
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vulkan/vulkan.h>

#define MIB ((VkDeviceSize)1 << 20)
#define EXPORTED __attribute__((visibility("default")))

typedef PFN_vkVoidFunction (*Lookup)(VkInstance, const char *);

static Lookup real_lookup, real_device_lookup;
static VkResult (*real_negotiate)(uint32_t *);
static PFN_vkGetDeviceProcAddr real_device_functions;
static PFN_vkGetPhysicalDeviceProperties real_properties;
static PFN_vkGetPhysicalDeviceProperties2 real_properties2;
static PFN_vkGetPhysicalDeviceMemoryProperties real_memory;
static PFN_vkGetPhysicalDeviceMemoryProperties2 real_memory2;
static PFN_vkAllocateMemory real_allocate;
static PFN_vkFreeMemory real_free;
static PFN_vkGetBufferMemoryRequirements real_requirements;
static PFN_vkGetBufferMemoryRequirements2 real_requirements2;
static PFN_vkGetDeviceBufferMemoryRequirements real_device_requirements;
static PFN_vkGetMemoryHostPointerPropertiesEXT real_pointer;

enum { OF_CARD, OF_HOST }; /* the types of memory, and their heaps */

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static struct allocation {
    VkDeviceMemory handle;
    VkDeviceSize size;
    struct allocation *next;
} *allocations;
static VkDeviceSize allocated;

__attribute__((constructor)) static void load(void) {
    void *driver = dlopen(CARD_DRIVER, RTLD_NOW | RTLD_LOCAL);
    if (!driver) {
        fprintf(stderr, "no software renderer behind the card: %s\n", dlerror());
        return;
    }
    real_lookup = (Lookup)dlsym(driver, "vk_icdGetInstanceProcAddr");
    real_device_lookup = (Lookup)dlsym(driver, "vk_icdGetPhysicalDeviceProcAddr");
    real_negotiate = (VkResult(*)(uint32_t *))dlsym(driver, "vk_icdNegotiateLoaderICDInterfaceVersion");
}

static void *find(void *chain, VkStructureType type) {
    for (VkBaseOutStructure *link = chain; link; link = link->pNext)
        if (link->sType == type) return link;
    return NULL;
}

/* Limits as NVIDIA's driver reports them: 4 GiB - 1 for a storage buffer, no practical bound for a buffer. */
static void disguise(VkPhysicalDeviceProperties *properties) {
    properties->deviceType = VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU;
    properties->limits.maxStorageBufferRange = UINT32_MAX;
    snprintf(properties->deviceName, sizeof properties->deviceName, "%s", CARD_NAME);
}

static void identify(uint8_t uuid[VK_UUID_SIZE]) {
    memset(uuid, 0, VK_UUID_SIZE);
    uuid[VK_UUID_SIZE - 1] = CARD_NUMBER;
}

static void get_properties(VkPhysicalDevice device, VkPhysicalDeviceProperties *properties) {
    real_properties(device, properties);
    disguise(properties);
}

static void get_properties2(VkPhysicalDevice device, VkPhysicalDeviceProperties2 *properties) {
    const VkDeviceSize largest = (VkDeviceSize)1 << 36;
    real_properties2(device, properties);
    disguise(&properties->properties);
    VkPhysicalDeviceIDProperties *id = find(properties->pNext, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES);
    if (id) {
        identify(id->deviceUUID);
        id->deviceLUIDValid = VK_FALSE;
    }
    VkPhysicalDeviceVulkan11Properties *v11 =
        find(properties->pNext, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_PROPERTIES);
    if (v11) {
        identify(v11->deviceUUID);
        v11->deviceLUIDValid = VK_FALSE;
        v11->maxMemoryAllocationSize = largest;
    }
    VkPhysicalDeviceMaintenance3Properties *m3 =
        find(properties->pNext, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_3_PROPERTIES);
    if (m3) m3->maxMemoryAllocationSize = largest;
    VkPhysicalDeviceVulkan13Properties *v13 =
        find(properties->pNext, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_PROPERTIES);
    if (v13) v13->maxBufferSize = largest;
    VkPhysicalDeviceMaintenance4Properties *m4 =
        find(properties->pNext, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_4_PROPERTIES);
    if (m4) m4->maxBufferSize = largest;
}

static void divide(VkPhysicalDeviceMemoryProperties *memory) {
    const VkMemoryPropertyFlags mapped = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
    const VkDeviceSize of_host = memory->memoryHeaps[0].size;
    memory->memoryTypeCount = memory->memoryHeapCount = 2;
    memory->memoryHeaps[OF_CARD] = (VkMemoryHeap){CARD_MIB * MIB, VK_MEMORY_HEAP_DEVICE_LOCAL_BIT};
    memory->memoryHeaps[OF_HOST] = (VkMemoryHeap){of_host, 0};
    memory->memoryTypes[OF_CARD] = (VkMemoryType){VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT | mapped, OF_CARD};
    memory->memoryTypes[OF_HOST] = (VkMemoryType){mapped | VK_MEMORY_PROPERTY_HOST_CACHED_BIT, OF_HOST};
}

static void get_memory(VkPhysicalDevice device, VkPhysicalDeviceMemoryProperties *memory) {
    real_memory(device, memory);
    divide(memory);
}

/* What others hold lowers the budget (VK_EXT_memory_budget: what this process may have), what we hold is the usage. */
static void get_memory2(VkPhysicalDevice device, VkPhysicalDeviceMemoryProperties2 *memory) {
    real_memory2(device, memory);
    divide(&memory->memoryProperties);
    VkPhysicalDeviceMemoryBudgetPropertiesEXT *budget =
        find(memory->pNext, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT);
    if (!budget) return;
    budget->heapBudget[OF_HOST] = budget->heapBudget[0];
    budget->heapUsage[OF_HOST] = budget->heapUsage[0];
    pthread_mutex_lock(&guard);
    budget->heapBudget[OF_CARD] = (CARD_MIB - CARD_USED_MIB) * MIB;
    budget->heapUsage[OF_CARD] = allocated;
    pthread_mutex_unlock(&guard);
}

/* A buffer may lie in either type; memory that a program has already is the host's. */
static void get_requirements(VkDevice device, VkBuffer buffer, VkMemoryRequirements *needed) {
    real_requirements(device, buffer, needed);
    needed->memoryTypeBits = 1 << OF_CARD | 1 << OF_HOST;
}

static void get_requirements2(VkDevice device, const VkBufferMemoryRequirementsInfo2 *info,
                              VkMemoryRequirements2 *needed) {
    real_requirements2(device, info, needed);
    needed->memoryRequirements.memoryTypeBits = 1 << OF_CARD | 1 << OF_HOST;
}

static void get_device_requirements(VkDevice device, const VkDeviceBufferMemoryRequirements *info,
                                    VkMemoryRequirements2 *needed) {
    real_device_requirements(device, info, needed);
    needed->memoryRequirements.memoryTypeBits = 1 << OF_CARD | 1 << OF_HOST;
}

static VkResult get_pointer(VkDevice device, VkExternalMemoryHandleTypeFlagBits type, const void *pointer,
                            VkMemoryHostPointerPropertiesEXT *properties) {
    VkResult result = real_pointer(device, type, pointer, properties);
    properties->memoryTypeBits = 1 << OF_HOST;
    return result;
}

static VkResult allocate(VkDevice device, const VkMemoryAllocateInfo *info, const VkAllocationCallbacks *callbacks,
                         VkDeviceMemory *memory) {
    VkMemoryAllocateInfo request = *info;
    request.memoryTypeIndex = 0;
    if (info->memoryTypeIndex == OF_HOST) return real_allocate(device, &request, callbacks, memory);
    VkResult result = VK_ERROR_OUT_OF_DEVICE_MEMORY;
    struct allocation *entry = malloc(sizeof *entry);
    if (!entry) return VK_ERROR_OUT_OF_HOST_MEMORY;
    pthread_mutex_lock(&guard);
    if (allocated + info->allocationSize <= (CARD_MIB - CARD_USED_MIB) * MIB)
        result = real_allocate(device, &request, callbacks, memory);
    if (result == VK_SUCCESS) {
        *entry = (struct allocation){*memory, info->allocationSize, allocations};
        allocations = entry;
        allocated += entry->size;
    }
    pthread_mutex_unlock(&guard);
    if (result != VK_SUCCESS) free(entry);
    return result;
}

static void release(VkDevice device, VkDeviceMemory memory, const VkAllocationCallbacks *callbacks) {
    pthread_mutex_lock(&guard);
    struct allocation **link = &allocations;
    while (*link && (*link)->handle != memory) link = &(*link)->next;
    if (*link) {
        struct allocation *entry = *link;
        allocated -= entry->size;
        *link = entry->next;
        free(entry);
    }
    pthread_mutex_unlock(&guard);
    real_free(device, memory, callbacks);
}

static PFN_vkVoidFunction get_device_function(VkDevice device, const char *name);

/* Returns our function in place of the renderer's `theirs`, which it keeps; `theirs` where we have none. */
static PFN_vkVoidFunction replaced(const char *name, PFN_vkVoidFunction theirs) {
    static const struct {
        const char *name;
        PFN_vkVoidFunction *theirs, ours;
    } functions[] = {
#define OURS(name, kept, ours) {name, (PFN_vkVoidFunction *)&kept, (PFN_vkVoidFunction)ours}
        OURS("vkGetDeviceProcAddr", real_device_functions, get_device_function),
        OURS("vkGetPhysicalDeviceProperties", real_properties, get_properties),
        OURS("vkGetPhysicalDeviceProperties2", real_properties2, get_properties2),
        OURS("vkGetPhysicalDeviceProperties2KHR", real_properties2, get_properties2),
        OURS("vkGetPhysicalDeviceMemoryProperties", real_memory, get_memory),
        OURS("vkGetPhysicalDeviceMemoryProperties2", real_memory2, get_memory2),
        OURS("vkGetPhysicalDeviceMemoryProperties2KHR", real_memory2, get_memory2),
        OURS("vkAllocateMemory", real_allocate, allocate),
        OURS("vkFreeMemory", real_free, release),
        OURS("vkGetBufferMemoryRequirements", real_requirements, get_requirements),
        OURS("vkGetBufferMemoryRequirements2", real_requirements2, get_requirements2),
        OURS("vkGetBufferMemoryRequirements2KHR", real_requirements2, get_requirements2),
        OURS("vkGetDeviceBufferMemoryRequirements", real_device_requirements, get_device_requirements),
        OURS("vkGetDeviceBufferMemoryRequirementsKHR", real_device_requirements, get_device_requirements),
        OURS("vkGetMemoryHostPointerPropertiesEXT", real_pointer, get_pointer),
    };
    for (size_t i = 0; theirs && i < sizeof functions / sizeof *functions; i++)
        if (!strcmp(name, functions[i].name)) {
            *functions[i].theirs = theirs;
            return functions[i].ours;
        }
    return theirs;
}

static PFN_vkVoidFunction get_device_function(VkDevice device, const char *name) {
    return replaced(name, real_device_functions(device, name));
}

EXPORTED PFN_vkVoidFunction vk_icdGetInstanceProcAddr(VkInstance instance, const char *name) {
    return real_lookup ? replaced(name, real_lookup(instance, name)) : NULL;
}

EXPORTED PFN_vkVoidFunction vk_icdGetPhysicalDeviceProcAddr(VkInstance instance, const char *name) {
    return real_device_lookup ? replaced(name, real_device_lookup(instance, name)) : NULL;
}

EXPORTED VkResult vk_icdNegotiateLoaderICDInterfaceVersion(uint32_t *version) {
    return real_negotiate ? real_negotiate(version) : VK_ERROR_INCOMPATIBLE_DRIVER;
}
