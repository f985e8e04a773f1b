/* A small pdh.dll for tests, compiled for this system: one process with two GPUs.
 *
 * STUB_PID=<pid>      the process that has instances; any other has none
 * STUB_SHARED=<mib>   its shared usage on the first GPU, STUB_SHARED_2 on the second
 * STUB_DEDICATED=<mib>
 * STUB_COLLECT=<code> what PdhCollectQueryData answers
 * STUB_STATUS=<code>  the state of each value
 */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

#define MORE_DATA 0x800007D2u
#define NO_INSTANCE 0x800007D1u
#define FORM_LARGE 0x400u

typedef struct { uint32_t status; int64_t large; } Value;
typedef struct { const wchar_t *name; Value value; } Item;
typedef struct { int shared, known; } Counter;

static Counter counters[2];
int stub_open_count = 0;

static long configured_value(const char *name) {
    const char *value = getenv(name);
    return value ? atol(value) : 0;
}

uint32_t PdhOpenQueryW(const wchar_t *source, uintptr_t user, void **query) {
    if (source || user) return 1;
    *query = &stub_open_count;
    stub_open_count++;
    return 0;
}

uint32_t PdhAddEnglishCounterW(void *query, const wchar_t *path, uintptr_t user, void **counter) {
    wchar_t wanted[64];
    if (query != &stub_open_count || user) return 1;
    swprintf(wanted, 64, L"\\GPU Process Memory(pid_%ld_*)\\", configured_value("STUB_PID"));
    int shared = wcsstr(path, L"Shared Usage") != NULL;
    counters[shared] = (Counter){shared, wcsncmp(path, wanted, wcslen(wanted)) == 0};
    *counter = &counters[shared];
    return 0;
}

uint32_t PdhCollectQueryData(void *query) {
    return query == &stub_open_count ? (uint32_t)configured_value("STUB_COLLECT") : 1;
}

uint32_t PdhGetFormattedCounterArrayW(Counter *counter, uint32_t form, uint32_t *size, uint32_t *count, Item *items) {
    if (!(form & FORM_LARGE)) return 1;
    if (!counter->known) return NO_INSTANCE;
    if (!items || *size < 2 * sizeof *items) {
        *size = 2 * sizeof *items;
        return MORE_DATA;
    }
    long first = configured_value(counter->shared ? "STUB_SHARED" : "STUB_DEDICATED");
    long second = counter->shared ? configured_value("STUB_SHARED_2") : 0;
    uint32_t status = (uint32_t)configured_value("STUB_STATUS");
    items[0] = (Item){L"pid_luid_0_phys_0", {status, (int64_t)first << 20}};
    items[1] = (Item){L"pid_luid_1_phys_0", {status, (int64_t)second << 20}};
    *count = 2;
    return 0;
}

uint32_t PdhCloseQuery(void *query) {
    if (query != &stub_open_count) return 1;
    stub_open_count--;
    return 0;
}
