/* A graphics card of a chosen size for programs that ask Vulkan, on a machine without one.

   This Vulkan driver hands every call to Mesa's software renderer and changes only what tells a card from a processor:
   type, name, UUID, limits and memory. Its memory is counted: past the card's size an allocation fails as on a card.
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

static void get_memory(VkPhysicalDevice device, VkPhysicalDeviceMemoryProperties *memory) {
    real_memory(device, memory);
    memory->memoryHeaps[0].size = CARD_MIB * MIB;
}

/* What others hold lowers the budget (VK_EXT_memory_budget: what this process may have), what we hold is the usage. */
static void get_memory2(VkPhysicalDevice device, VkPhysicalDeviceMemoryProperties2 *memory) {
    real_memory2(device, memory);
    memory->memoryProperties.memoryHeaps[0].size = CARD_MIB * MIB;
    VkPhysicalDeviceMemoryBudgetPropertiesEXT *budget =
        find(memory->pNext, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT);
    if (!budget) return;
    pthread_mutex_lock(&guard);
    budget->heapBudget[0] = (CARD_MIB - CARD_USED_MIB) * MIB;
    budget->heapUsage[0] = allocated;
    pthread_mutex_unlock(&guard);
}

static VkResult allocate(VkDevice device, const VkMemoryAllocateInfo *info, const VkAllocationCallbacks *callbacks,
                         VkDeviceMemory *memory) {
    VkResult result = VK_ERROR_OUT_OF_DEVICE_MEMORY;
    struct allocation *entry = malloc(sizeof *entry);
    if (!entry) return VK_ERROR_OUT_OF_HOST_MEMORY;
    pthread_mutex_lock(&guard);
    if (allocated + info->allocationSize <= (CARD_MIB - CARD_USED_MIB) * MIB)
        result = real_allocate(device, info, callbacks, memory);
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
