/* Preloaded, it answers every lock as a file system does that has none, with the error LOCK_ERRNO. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/file.h>
#include <dlfcn.h>
static int refused(void) { const char *e = getenv("LOCK_ERRNO"); errno = e ? atoi(e) : ENOLCK; return -1; }
int flock(int fd, int op) {
    if (getenv("UNLOCK_FAILS")) { /* locks work, but not the end of one */
        int (*real)(int, int) = dlsym(RTLD_NEXT, "flock");
        if (op != LOCK_UN) return real(fd, op);
    }
    return refused();
}
static int ctl(const char *name, int fd, int cmd, void *arg) {
    if (cmd == F_SETLK || cmd == F_SETLKW || cmd == F_OFD_SETLK || cmd == F_OFD_SETLKW || cmd == F_GETLK) return refused();
    int (*real)(int, int, ...) = dlsym(RTLD_NEXT, name);
    return real(fd, cmd, arg);
}
int fcntl(int fd, int cmd, ...) { va_list l; va_start(l, cmd); void *a = va_arg(l, void *); va_end(l); return ctl("fcntl", fd, cmd, a); }
int fcntl64(int fd, int cmd, ...) { va_list l; va_start(l, cmd); void *a = va_arg(l, void *); va_end(l); return ctl("fcntl64", fd, cmd, a); }
